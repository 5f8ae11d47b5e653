"""A limit whose key only a dependency knows is decided when it is known, and gives back what was consumed before."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from calls import aask, ask
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Security
from fastapi.responses import PlainTextResponse
from fastapi_apps import by_user, current_user, limited, remaining, statuses, view

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.asgi import request as asgi_request
from ratelimit_mw.fastapi import RateLimit, RateLimitExceeded, RateLimitMiddleware, exempt
from ratelimit_mw.testing import ManualClock


def test_a_user_from_a_dependency_is_the_key() -> None:
    """Users are counted apart, requests without a user are left alone, and every allowed response has the headers."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user())])
    limited(app)
    answers = [ask(app, headers={"x-user": user} if user else {}) for user in ("ann", "ann", "bob", "ann", "")]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 200]
    assert [answer.headers.get("x-ratelimit-remaining") for answer in answers] == ["1", "0", "1", "0", None]
    assert answers[3].json()["violated-policies"] == ["users"]
    assert answers[3].headers["retry-after"] == "20"


def test_what_was_consumed_before_comes_back_with_a_rejection() -> None:
    """When the later decision rejects, the request has consumed nothing."""
    limiter = Limiter([Rule(name="file", limits="9/minute")], clock=ManualClock(1_000_000.0))
    first = RateLimit("9/minute", key=["user"], features={"user": current_user}, name="first")
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(first), Depends(by_user("1/minute"))])
    limited(app, limiter=limiter)
    assert statuses(app, *["/"] * 4, headers={"x-user": "ann"}) == [200, 429, 429, 429]
    left = limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining
    assert [left, *remaining(limiter, "first", user="ann"), *remaining(limiter, "users", user="ann")] == [8, 8, 0]


def test_a_limit_that_fastapi_calls_twice_counts_once() -> None:
    """Neither ``use_cache=False`` nor scopes make a request consume a limit again that it has met."""
    users, everyone = by_user("2/minute"), RateLimit("9/minute", name="everyone")
    app = FastAPI(dependencies=[Depends(users), Depends(everyone)])
    again = [Depends(users, use_cache=False), Security(users, scopes=["read"]), Security(everyone, scopes=["read"])]
    app.add_api_route("/", view, dependencies=again)
    limited(app)
    assert statuses(app, *["/"] * 3, headers={"x-user": "ann"}) == [200, 200, 429]
    assert ask(app).headers["x-ratelimit-remaining"] == "6"


def test_a_feature_that_is_given_is_asked_of_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """The middleware's own function, and a word on users that are missing, are for limits that are given nobody."""
    asked: list[str] = []

    async def other(request: Any) -> str:
        asked.append(request["path"])
        return "other"

    asgi_request._warn_of_missing_users.cache_clear()
    for features in ({}, {"user": other}):
        app = FastAPI(dependencies=[Depends(by_user("1/minute"))])
        app.add_api_route("/", view)
        app.add_middleware(RateLimitMiddleware, limiter=Limiter(clock=ManualClock(1.0)), features=features)
        assert statuses(app, *["/"] * 2, headers={"x-user": "ann"}) == [200, 429]
    assert (asked, [record.getMessage() for record in caplog.records if "user" in record.getMessage()]) == ([], [])


def test_a_later_rejection_passes_middleware_of_the_application() -> None:
    """It is answered outside of middleware that is made of functions, and what stands around this one sees a 429."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])

    @app.middleware("http")
    async def inside(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    limited(app)

    @app.middleware("http")
    async def outside(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-seen"] = str(response.status_code)
        return response

    answers = [ask(app, headers={"x-user": "ann"}) for _ in range(2)]
    assert [answer.headers["x-seen"] for answer in answers] == ["200", "429"]
    assert answers[1].headers["retry-after"] == "20"


@pytest.mark.parametrize("mounted", ["plain", "with a handler for errors", "with middleware that answers errors"])
def test_a_later_rejection_in_a_mounted_application_is_no_error(mounted: str) -> None:
    """Starlette answers what a mounted application raises with 500; of a rejection nobody sees that."""
    inner, app = FastAPI(), FastAPI()
    inner.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    if mounted == "with a handler for errors":
        inner.exception_handler(Exception)(lambda request, error: PlainTextResponse("broken", 500))
    if mounted == "with middleware that answers errors":

        @inner.middleware("http")
        async def answering(request: Request, call_next: Any) -> Any:
            try:
                return await call_next(request)
            except RateLimitExceeded:
                return PlainTextResponse("broken", 500)

    app.mount("/inner", inner)
    limited(app)
    answers = [ask(app, "/inner/", headers={"x-user": "ann"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert (answers[1].headers["retry-after"], answers[1].json()["violated-policies"]) == ("20", ["users"])


def test_errors_of_a_mounted_application_are_answered_as_ever() -> None:
    """Only what becomes of a rejection is hidden."""
    inner, app = FastAPI(), FastAPI()

    @inner.get("/", dependencies=[Depends(by_user("9/minute"))])
    def broken() -> None:
        raise HTTPException(500, "broken")

    app.mount("/inner", inner)
    limited(app)
    answer = ask(app, "/inner/", headers={"x-user": "ann"})
    assert (answer.status_code, answer.json(), answer.headers["x-ratelimit-remaining"]) == (
        500,
        {"detail": "broken"},
        "8",
    )


def test_allowed_responses_tell_all_decisions() -> None:
    """The headers show the limit with the least left, wherever it was decided."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user("5/minute"))])
    limited(app, Rule(name="file", limits="3/minute"))
    first = ask(app, headers={"x-user": "ann"}).headers
    assert (first["ratelimit"], first["ratelimit-policy"]) == ('"file";r=2;t=20', '"file";q=3;w=60, "users";q=5;w=60')
    assert ask(app, headers={"x-user": "bob"}).headers["ratelimit"] == '"file";r=1;t=50'


def test_slots_and_outcomes_of_later_decisions_end_with_the_request() -> None:
    """A later limit may be on what is in flight or on outcomes: both end as they do elsewhere."""
    limiter = Limiter(clock=ManualClock(1_000_000.0))
    options = {"key": ["user"], "features": {"user": current_user}}
    slots = RateLimit("1 concurrent", name="slots", **options)
    failures = RateLimit("1/minute", name="failures", count_when={"status": 400}, **options)
    app = FastAPI(dependencies=[Depends(slots), Depends(failures)])
    during: list[Any] = []

    @app.get("/{status}")
    async def status(status: int) -> str:
        during.extend(remaining(limiter, "slots", user="ann"))
        if status == 500:
            raise ValueError("broken")
        raise HTTPException(status)

    limited(app, limiter=limiter)
    ann = {"x-user": "ann"}
    assert [ask(app, f"/{code}", headers=ann).status_code for code in (404, 404)] == [404, 404]
    with pytest.raises(ValueError, match="broken"):
        ask(app, "/500", headers=ann)
    assert [ask(app, f"/{code}", headers=ann).status_code for code in (400, 404)] == [400, 429]
    assert during == [0, 0, 0, 0]
    assert remaining(limiter, "slots", user="ann") == [1]


def test_a_request_that_is_cancelled_gives_its_slots_back() -> None:
    """What a later decision holds comes back when the server gives a request up."""
    limiter = Limiter(clock=ManualClock(1_000_000.0))
    slots = RateLimit("1 concurrent", key=["user"], features={"user": current_user}, name="slots")
    app = FastAPI(dependencies=[Depends(slots)])
    entered = asyncio.Event()

    @app.get("/")
    async def waits() -> None:
        entered.set()
        await asyncio.Event().wait()

    limited(app, limiter=limiter)

    async def scenario() -> None:
        request = asyncio.create_task(aask(app, headers={"x-user": "ann"}))
        await entered.wait()
        assert remaining(limiter, "slots", user="ann") == [0]
        request.cancel()
        await asyncio.wait([request])

    asyncio.run(scenario())
    assert remaining(limiter, "slots", user="ann") == [1]


def test_a_dependency_that_rejects_first_is_answered_first() -> None:
    """Where the user is not let in, no limit by user is asked."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    limited(app)
    assert statuses(app, *["/"] * 3, headers={"x-user": "stranger"}) == [401, 401, 401]


def test_the_applications_handler_answers_later_rejections() -> None:
    """A handler registered for the error answers, with the headers; without one the middleware does."""
    app = FastAPI()

    @app.exception_handler(RateLimitExceeded)
    async def rejected(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
        return PlainTextResponse("wait", status_code=418)

    app.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    limited(app)
    answer = [ask(app, headers={"x-user": "ann"}) for _ in range(2)][-1]
    assert (answer.status_code, answer.text) == (418, "wait")
    assert (answer.headers["retry-after"], answer.headers["ratelimit"]) == ("20", '"users";r=0;t=20')


def test_any_feature_may_come_from_a_dependency() -> None:
    """A feature of your own, several of them, and given as ``Depends``; other features are read as ever."""

    async def tenant(x_tenant: Annotated[str, Header()]) -> str:
        return x_tenant

    features = {"tenant": tenant, "user": Depends(current_user)}
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", key=["tenant", "user|ip"], features=features))])
    app.add_api_route("/", view)
    limited(app)
    asked = [("a", "ann"), ("a", ""), ("b", "ann"), ("a", "ann"), ("a", "")]
    found = [ask(app, headers={"x-tenant": t, **({"x-user": u} if u else {})}).status_code for t, u in asked]
    assert found == [200, 200, 200, 429, 429]


def test_a_feature_that_one_limit_is_given_is_not_known_to_others() -> None:
    """Another rule that needs it would never apply: that is a mistake at the start, as without the dependency."""
    features = {"tenant": current_user}
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", key=["tenant"], features=features, name="given"))])
    app.add_api_route("/", view, dependencies=[Depends(RateLimit("1/minute", key=["tenant"], name="other"))])
    with pytest.raises(ConfigError, match=r"rule 'other' uses the feature 'tenant', but nothing provides it"):
        ask(limited(app))


def test_later_decisions_respect_methods_and_exemptions() -> None:
    """A later limit has the conditions of a rule, and a view that is exempt is exempt from it."""
    app = FastAPI(dependencies=[Depends(by_user("1/minute", match={"methods": ["POST"]}))])
    app.add_api_route("/", view, methods=["GET", "POST"])
    app.add_api_route("/free", exempt("users")(view), methods=["POST"])
    limited(app)
    ann: Any = {"headers": {"x-user": "ann"}}
    asked = [("GET", "/"), ("POST", "/"), ("GET", "/"), ("POST", "/"), ("POST", "/free"), ("POST", "/free")]
    assert [ask(app, path, method, **ann).status_code for method, path in asked] == [200, 200, 200, 429, 200, 200]


def test_a_later_limit_may_need_the_body() -> None:
    """A field of the body is read ahead for it, and the view has the body all the same."""
    app = FastAPI()
    by_both = RateLimit("1/minute", key=["user", "json:name"], features={"user": current_user})

    @app.post("/", dependencies=[Depends(by_both)])
    async def make(item: dict[str, str]) -> str:
        return item["name"]

    limited(app)
    asked = [ask(app, "/", "POST", json={"name": name}, headers={"x-user": "ann"}) for name in ("a", "b", "a")]
    assert [(answer.status_code, answer.text[:3]) for answer in asked] == [(200, '"a"'), (200, '"b"'), (429, '{"t')]


def test_a_queue_lets_requests_wait_on_their_way() -> None:
    """A leaky-bucket queue delays a request when its key is known."""
    app = FastAPI()
    queue = by_user("1000/second burst 2", algorithm={"name": "leaky-bucket", "mode": "queue"})
    app.add_api_route("/", view, dependencies=[Depends(queue)])
    limited(app)
    waited: list[float] = []

    async def noted(delay: float) -> None:
        waited.append(delay)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ratelimit_mw.asgi.dependencies.asyncio.sleep", noted)
        assert statuses(app, "/", "/", headers={"x-user": "ann"}) == [200, 200]
    assert waited == [0.001]
