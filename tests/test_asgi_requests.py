"""What the ASGI middleware makes of requests: state, mounts, features, delays, outcomes and costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_checker import App, Receive, Scope, Send, checked
from calls import BODY, FIELDS, START, aask, ask, http_scope, limited, limiter, names_of, send_bare, sending
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, BaseUser, SimpleUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

OK = sending(START, BODY)


def statuses(app: App, times: int, **request: Any) -> list[int]:
    return [ask(app, **request).status_code for _ in range(times)]


def responding(status: int) -> App:
    return sending({"type": "http.response.start", "status": status, "headers": []}, BODY)


# -- the state ---------------------------------------------------------------------------------------------


def test_the_application_finds_the_verdict_in_its_state() -> None:
    """``scope["state"]["ratelimit"]`` is the verdict; a state that the server made is used, not replaced."""
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await OK(scope, receive, send)

    given = http_scope(state={"db": 1})
    send_bare(limited(app), given)
    send_bare(limited(app), http_scope())
    assert seen[0]["state"] is given["state"]
    assert [scope["state"]["ratelimit"].decisions[0].remaining for scope in seen] == [1, 1]


def test_a_state_that_all_requests_share_frees_nobody() -> None:
    """Some servers hand every request the very same state; what an earlier one left there must not count."""
    state: dict[str, Any] = {}
    guarded = limited(OK, limiter("1/minute"))
    assert [send_bare(guarded, http_scope(state=state))[0]["status"] for _ in range(3)] == [200, 429, 429]


# -- more than one middleware ------------------------------------------------------------------------------


def twice(app: App, outer: dict[str, Any], inner: dict[str, Any]) -> App:
    return RateLimitMiddleware(RateLimitMiddleware(app, **inner), **outer)


def test_the_same_limiter_mounted_twice_decides_once() -> None:
    """Two middlewares over one limiter spend once and write the headers once."""
    rate = limiter("3/minute")
    app = twice(OK, {"limiter": rate}, {"limiter": rate})
    answers = [ask(app) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [name for name in answers[0].headers if name in FIELDS] == FIELDS
    assert len(answers[0].headers.get_list("ratelimit")) == 1


@pytest.mark.parametrize("state", [{}, None])
def test_two_middlewares_of_the_same_settings_decide_once(state: dict[str, Any] | None) -> None:
    """Two middlewares built from equal settings, each with a store of its own, count a request once."""
    settings = {"rules": [{"name": "api", "limits": "2/minute"}]}
    app = twice(OK, {"settings": settings}, {"settings": dict(settings)})
    sent = [send_bare(app, http_scope(state=state and dict(state)))[0] for _ in range(3)]
    assert [start["status"] for start in sent] == [200, 200, 429]
    assert [dict(start["headers"])[b"x-ratelimit-remaining"] for start in sent] == [b"1", b"0", b"0"]


def test_two_different_limiters_both_decide() -> None:
    """Limiters that know nothing of each other both spend; the outer one's headers replace the inner one's."""
    outer, inner = limiter("9/minute"), limiter("1/minute")
    app = twice(OK, {"limiter": outer}, {"limiter": inner})
    answers = [ask(app) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert [answer.headers.get_list("x-ratelimit-limit") for answer in answers] == [["9"], ["9"]]
    assert answers[1].headers["retry-after"] == "20"  # the refusal's own, which only the inner one has


def test_a_middleware_within_a_mount_decides_once_and_knows_the_mount() -> None:
    """Inside a Starlette mount rules see the whole path, and a middleware outside has decided for both."""
    rate = limiter("1/minute", match={"path": "/sub/items"})
    inner = Starlette(routes=[Route("/items", lambda request: PlainTextResponse("items"))])
    alone = Starlette(routes=[Mount("/sub", app=RateLimitMiddleware(inner, limiter=rate))])
    assert statuses(alone, 2, path="/sub/items") == [200, 429]
    rate = limiter("2/minute", match={"path": "/sub/items"})
    both = Starlette(
        routes=[Mount("/sub", app=RateLimitMiddleware(inner, limiter=rate))],
        middleware=[Middleware(RateLimitMiddleware, limiter=rate)],
    )
    assert statuses(both, 3, path="/sub/items") == [200, 200, 429]


# -- method and path ---------------------------------------------------------------------------------------


def test_a_method_in_small_letters_is_no_way_around_a_rule() -> None:
    """Servers pass methods on as they come and some frameworks capitalise them, so rules do too."""
    rate = limiter("1/minute", match={"methods": ["POST"]}, key=["method"])
    assert statuses(limited(OK, rate), 1, method="POST") == [200]
    sent = send_bare(limited(OK, rate), http_scope(method="post"))
    assert sent[0]["status"] == 429


def test_head_spends_what_get_spends_and_has_no_body() -> None:
    """HEAD counts with GET, and a refused HEAD has the headers of the refusal without its body."""
    app = limited(OK, limiter("2/minute", match={"methods": ["GET"]}))
    assert [statuses(app, 1, method=m) for m in ("GET", "HEAD", "GET")] == [[200], [200], [429]]
    refused = ask(app, method="HEAD")
    assert (refused.status_code, refused.content) == (429, b"")
    assert int(refused.headers["content-length"]) == len(ask(app).content) > 0


def test_preflights_are_left_alone_unless_a_rule_names_them() -> None:
    """OPTIONS is not counted by a rule for all methods, and counted by one that names it."""
    app = limited(OK, limiter("1/minute"))
    assert statuses(app, 3, method="OPTIONS") == [200] * 3
    assert "ratelimit" not in ask(app, method="OPTIONS").headers
    assert statuses(limited(OK, limiter("1/minute", match={"methods": "OPTIONS"})), 2, method="OPTIONS") == [200, 429]


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ({"path": "/items"}, "/items"),
        ({"path": "/items", "root_path": None}, "/items"),
        ({"path": "/api/items", "root_path": "/api"}, "/items"),
        ({"path": "/api", "root_path": "/api"}, "/"),
        ({"path": "/apikeys", "root_path": "/api"}, "/apikeys"),
        ({"path": "/items", "root_path": "/api"}, "/items"),
        ({"path": "/sub/items", "root_path": "/sub", "app_root_path": ""}, "/sub/items"),
        ({"path": "/api/sub/items", "root_path": "/api/sub", "app_root_path": "/api"}, "/sub/items"),
    ],
)
def test_rules_see_the_path_without_the_servers_prefix(scope: dict[str, Any], path: str) -> None:
    """What the server mounted the application under is not part of the path; what the application mounts is."""
    app = limited(OK, limiter("1/minute", match={"path": path}))
    assert [send_bare(app, http_scope(**scope))[0]["status"] for _ in range(2)] == [200, 429]


def test_a_request_without_an_address_shares_one_value() -> None:
    """``client`` may be None, as on a Unix socket: such requests are limited together."""
    app = limited(OK, limiter("1/minute"))
    sent = [send_bare(app, http_scope(client=client))[0]["status"] for client in (None, None, ("192.0.2.7", 1))]
    assert sent == [200, 429, 200]


# -- features ----------------------------------------------------------------------------------------------


def test_your_own_features_may_be_sync_or_async() -> None:
    """Functions of the request give features, awaited where they are async, and see scope and headers."""

    async def plan(request: Any) -> str:
        await asyncio.sleep(0)
        return str(request.headers["X-Plan"])

    rate = limiter("1/minute", key=["plan", "user"])
    app = limited(OK, rate, features={"plan": plan, "user": lambda request: request["client"][0]})
    seen = [ask(app, headers={"x-plan": p}, client=c).status_code for p in ("a", "b") for c in ("192.0.2.1", "h2")]
    assert seen == [200] * 4
    assert ask(app, headers={"x-plan": "b"}, client="h2").status_code == 429


class Person(BaseUser):
    """A user with a number of its own and a name that others may have."""

    is_authenticated = True
    display_name = "John Smith"

    def __init__(self, number: str) -> None:
        self.number = number

    @property
    def identity(self) -> str:
        return self.number


class Nameless(BaseUser):
    is_authenticated = True


class Guest(Nameless):
    identity = ""
    display_name = "guest"


USERS = {
    "ann": SimpleUser("ann"),
    "john-1": Person("1"),
    "john-2": Person("2"),
    "guest": Guest(),
    "nameless": Nameless(),
    "nobody": UnauthenticatedUser(),
}


async def authenticate(connection: HTTPConnection) -> tuple[AuthCredentials, Any] | None:
    name = connection.headers.get("x-who")
    return None if name is None else (AuthCredentials(), USERS[name])


def test_the_user_is_whom_starlette_has_authenticated() -> None:
    """The user's unique identity counts, then the display name; who has neither or is not signed in has none."""
    backend = type("Backend", (), {"authenticate": staticmethod(authenticate)})()
    rate = Limiter([Rule(name="user", limits="1/minute", key=["user"])], clock=ManualClock(1.0))
    app = AuthenticationMiddleware(RateLimitMiddleware(OK, limiter=rate), backend=backend)
    seen = {who: statuses(app, 2, headers={"x-who": who}) for who in USERS}
    known, unknown = [200, 429], [200, 200]
    assert seen == dict(zip(USERS, [known] * 4 + [unknown] * 2, strict=True))
    assert statuses(app, 2) == unknown
    assert not rate.peek({"user": "1"}).allowed


# -- delays, outcomes, costs -------------------------------------------------------------------------------


def test_a_queue_makes_requests_wait_their_turn() -> None:
    """Under a leaky-bucket queue requests go on one period apart, and one that finds it full is refused."""
    rate = Limiter([Rule(name="queue", limits="50/s burst 3", algorithm={"name": "leaky-bucket", "mode": "queue"})])

    async def scenario() -> tuple[list[int], list[float]]:
        loop, went_on = asyncio.get_running_loop(), []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            went_on.append(loop.time())
            await OK(scope, receive, send)

        guarded = RateLimitMiddleware(app, limiter=rate)
        answers = await asyncio.gather(*(aask(guarded) for _ in range(4)))
        return [answer.status_code for answer in answers], went_on

    found, went_on = asyncio.run(scenario())
    assert sorted(found) == [200, 200, 200, 429]
    assert went_on[-1] - went_on[0] >= 0.035


def test_twenty_failing_logins_at_once_let_three_through() -> None:
    """Only failures count, and as each request reserves its place first, no storm gets past the limit."""
    rate = limiter("3/minute", count_when={"status": [401, 403]})

    async def scenario() -> list[int]:
        arrived = asyncio.Event()

        async def login(scope: Scope, receive: Receive, send: Send) -> None:
            await arrived.wait()
            await responding(401)(scope, receive, send)

        guarded = limited(login, rate)
        storm = [asyncio.create_task(aask(guarded)) for _ in range(20)]
        await asyncio.sleep(0.01)
        arrived.set()
        return [answer.status_code for answer in await asyncio.gather(*storm)]

    assert sorted(asyncio.run(scenario())) == [401] * 3 + [429] * 17


def test_what_does_not_count_is_given_back() -> None:
    """A successful login gives its reservation back; so does an error, whose status is 500; a failure keeps it."""

    async def login(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/500":
            raise ValueError("broken")
        await responding(int(scope["path"][1:]))(scope, receive, send)

    app = limited(login, limiter("2/minute", count_when={"status": 401}))
    assert statuses(app, 5, path="/200") == [200] * 5
    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            ask(app, path="/500")
    assert statuses(app, 4, path="/401") == [401, 401, 429, 429]
    assert ask(app, path="/200").status_code == 429


def test_an_error_counts_where_errors_count() -> None:
    """An application that raises before it answers is counted as the 500 that the server will send."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("broken")

    app = limited(broken, limiter("2/minute", count_when={"status": 500}))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            ask(app)
    assert ask(app).status_code == 429


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("cost", "left"), [(0, 10), (1, 9), (4, 6), (25, 0)])
def test_the_application_states_the_true_cost(cost: int, left: int, fails: bool) -> None:
    """``verdict.settle`` replaces the reserved cost after the response, also when the application then fails."""
    rate = limiter("10/minute", key=[])

    async def work(request: Request) -> PlainTextResponse:
        request.state.ratelimit.settle(cost)
        if fails:
            raise ValueError("broken")
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", work)], middleware=[Middleware(RateLimitMiddleware, limiter=rate)])
    if fails:
        with pytest.raises(ValueError, match="broken"):
            ask(app)
    else:
        assert ask(app).headers["x-ratelimit-remaining"] == "9"
    assert rate.peek({}, cost=0).decisions[0].remaining == left


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), ValueError("broken")])
def test_a_slot_comes_back_however_the_application_ends(ending: BaseException) -> None:
    """Told to stop, cancelled or broken: the slot is free at once, and nobody renews its lease."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ending

    async def call() -> None:
        with pytest.raises(type(ending)):
            await app_limited(http_scope(), None, None)  # type: ignore[arg-type]

    rate = limiter("1 concurrent; 9/minute", count_when={"status": 500})
    app_limited = RateLimitMiddleware(app, limiter=rate)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(call())
    finally:
        loop.close()
    assert [decision.remaining for decision in rate.peek({"ip": "192.0.2.7"}, cost=0).decisions] == [1, 8]
    assert rate._keeper._held == set()
    rate.close()


def test_a_request_that_is_cancelled_in_the_queue_gives_its_slot_back() -> None:
    """Who goes away while waiting for a turn holds nothing any longer."""
    queue = {"name": "leaky-bucket", "mode": "queue"}
    rules = [Rule(name="slots", limits="2 concurrent"), Rule(name="q", limits="1/hour burst 2", algorithm=queue)]
    rate = Limiter(rules, clock=ManualClock(1_000_000.0))
    guarded = RateLimitMiddleware(OK, limiter=rate)

    async def scenario() -> None:
        assert (await aask(guarded)).status_code == 200
        waiting = asyncio.create_task(aask(guarded))
        await asyncio.sleep(0.02)
        assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    assert rate.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining == 2
    assert rate._keeper._held == set()
    rate.close()


def test_settings_and_limiter_make_the_same_middleware() -> None:
    """A dictionary of settings gives what the same rules in a limiter give."""
    app = checked(
        lambda inner: RateLimitMiddleware(inner, settings={"rules": [{"name": "api", "limits": "1/minute"}]}), OK
    )
    assert statuses(app, 2) == [200, 429]


def test_options_of_the_middleware_replace_those_of_the_file() -> None:
    """HTTP settings given to the middleware count, and the file's others stay."""
    settings = {"rules": [{"name": "api", "limits": "5/minute"}], "headers": ["ratelimit"], "reset": "epoch"}
    app = RateLimitMiddleware(OK, settings=settings, headers=["x-ratelimit"])
    sent = send_bare(app, http_scope())
    assert names_of(sent[0]) == ["content-type", *FIELDS[:3]]
    assert int(dict(sent[0]["headers"])[b"x-ratelimit-reset"]) > 1_000_000
