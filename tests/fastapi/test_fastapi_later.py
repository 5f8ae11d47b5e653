"""A limit by a key of a dependency is decided in that dependency, and its rejection refunds nothing."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from calls import aask, ask
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Security
from fastapi.responses import PlainTextResponse
from fastapi_apps import by_user, current_user, limited, remaining, statuses, view
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.fastapi import RateLimit, RateLimitExceeded, RateLimitMiddleware, exempt
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.testing import ManualClock


def test_a_user_from_a_dependency_is_the_key() -> None:
    """Users have their own counts, requests without a user are not limited, and allowed responses have the headers."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user())])
    limited(app)
    responses = [ask(app, headers={"x-user": user} if user else {}) for user in ("ann", "ann", "bob", "ann", "")]
    assert [response.status_code for response in responses] == [200, 200, 200, 429, 200]
    assert [response.headers.get("x-ratelimit-remaining") for response in responses] == ["1", "0", "1", "0", None]
    assert responses[3].json()["violated-policies"] == ["users"]
    assert responses[3].headers["retry-after"] == "60"


def test_a_later_rejection_keeps_earlier_costs() -> None:
    """Dependencies have run between the decisions, so the earlier ones stay consumed."""
    limiter = Limiter([Rule(name="file", limits="9/minute")], clock=ManualClock(1_000_000.0))
    first = RateLimit("9/minute", key=["user"], features={"user": current_user}, name="first")
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(first), Depends(by_user("1/minute"))])
    limited(app, limiter=limiter)
    assert statuses(app, *["/"] * 4, headers={"x-user": "ann"}) == [200, 429, 429, 429]
    remainder = limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining
    assert [remainder, *remaining(limiter, "first", user="ann"), *remaining(limiter, "users", user="ann")] == [5, 5, 0]


def test_the_innermost_middleware_decides_a_later_limit() -> None:
    """Both know the limit, but only one of them counts it."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user())])
    inner, outer = (Limiter([Rule(name=name, limits="9/minute")], clock=ManualClock(1e6)) for name in ("in", "out"))
    limited(limited(app, limiter=inner), limiter=outer)
    assert statuses(app, "/", headers={"x-user": "ann"}) == [200]
    assert [*remaining(inner, "users", user="ann"), *remaining(outer, "users", user="ann")] == [1, 2]


@pytest.mark.slow
def test_a_client_over_its_limit_cannot_authenticate_without_a_limit() -> None:
    """Each request authenticates before the limit by user rejects it. The limit by IP address holds all the same."""
    authentications: list[str] = []

    def authenticate(request: Request) -> str:
        authentications.append(request.headers["x-user"])
        return authentications[-1]

    by_name = RateLimit("1/minute", key=["user"], features={"user": authenticate}, name="users")
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_name)])
    limiter = Limiter([Rule(name="ips", limits="20/minute")], clock=ManualClock(1_000_000.0))
    limited(app, limiter=limiter)
    assert statuses(app, *["/"] * 1000, headers={"x-user": "ann"}).count(200) == 1
    assert len(authentications) == 20


def test_a_dependency_called_twice_counts_once() -> None:
    """With ``use_cache=False`` or scopes, FastAPI calls the dependency twice, and the request consumes once."""
    users, everyone = by_user("2/minute"), RateLimit("9/minute", name="everyone")
    app = FastAPI(dependencies=[Depends(users), Depends(everyone)])
    dependencies = [
        Depends(users, use_cache=False),
        Security(users, scopes=["read"]),
        Security(everyone, scopes=["read"]),
    ]
    app.add_api_route("/", view, dependencies=dependencies)
    limited(app)
    assert statuses(app, *["/"] * 3, headers={"x-user": "ann"}) == [200, 200, 429]
    assert ask(app).headers["x-ratelimit-remaining"] == "5"


def test_a_feature_of_a_dependency_uses_no_other_source(caplog: pytest.LogCaptureFixture) -> None:
    """The middleware does not call its own function, and does not log a missing source of users."""
    calls: list[str] = []

    async def other(request: Any) -> str:
        calls.append(request["path"])
        return "other"

    warn.cache_clear()
    for features in ({}, {"user": other}):
        app = FastAPI(dependencies=[Depends(by_user("1/minute"))])
        app.add_api_route("/", view)
        app.add_middleware(RateLimitMiddleware, limiter=Limiter(clock=ManualClock(1.0)), features=features)
        assert statuses(app, *["/"] * 2, headers={"x-user": "ann"}) == [200, 429]
    assert (calls, [record.getMessage() for record in caplog.records if "user" in record.getMessage()]) == ([], [])


def test_a_later_rejection_passes_through_middleware() -> None:
    """The rejection passes through function middleware inside, and middleware outside sees a 429."""
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

    responses = [ask(app, headers={"x-user": "ann"}) for _ in range(2)]
    assert [result.headers["x-seen"] for result in responses] == ["200", "429"]
    assert responses[1].headers["retry-after"] == "60"


@each("mounted", ["plain", "with a handler for errors", "with middleware that handles errors"])
def test_a_later_rejection_in_a_mounted_application_is_a_429(mounted: str) -> None:
    """Starlette sends a 500 for errors of a mounted application, but the client receives the rejection."""
    inner, app = FastAPI(), FastAPI()
    inner.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    if mounted == "with a handler for errors":
        inner.exception_handler(Exception)(lambda request, error: PlainTextResponse("broken", 500))
    if mounted == "with middleware that handles errors":

        @inner.middleware("http")
        async def respond_to_errors(request: Request, call_next: Any) -> Any:
            try:
                return await call_next(request)
            except RateLimitExceeded:
                return PlainTextResponse("broken", 500)

    app.mount("/inner", inner)
    limited(app)
    responses = [ask(app, "/inner/", headers={"x-user": "ann"}) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert (responses[1].headers["retry-after"], responses[1].json()["violated-policies"]) == ("60", ["users"])


def test_errors_of_a_mounted_application_stay_unchanged() -> None:
    """Only the error of a rejection is hidden."""
    inner, app = FastAPI(), FastAPI()

    @inner.get("/", dependencies=[Depends(by_user("9/minute"))])
    def broken() -> None:
        raise HTTPException(500, "broken")

    app.mount("/inner", inner)
    limited(app)
    response = ask(app, "/inner/", headers={"x-user": "ann"})
    assert (response.status_code, response.json(), response.headers["x-ratelimit-remaining"]) == (
        500,
        {"detail": "broken"},
        "8",
    )


def test_headers_show_the_limits_of_all_decisions() -> None:
    """The headers show all limits, wherever they were decided."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user("5/minute"))])
    limited(app, Rule(name="file", limits="3/minute"))
    first = ask(app, headers={"x-user": "ann"}).headers
    assert (first["ratelimit"], first["ratelimit-policy"]) == (
        '"file";r=2;t=60, "users";r=4;t=60',
        '"file";q=3;w=60, "users";q=5;w=60',
    )
    bob = ask(app, headers={"x-user": "bob"}).headers
    assert (bob["ratelimit"], bob["x-ratelimit-limit"]) == ('"file";r=1;t=60, "users";r=4;t=60', "3")


def test_a_cancelled_request_releases_its_slots() -> None:
    """The slot of a later decision is released when the server cancels the request."""
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


def test_an_earlier_dependency_may_reject_first() -> None:
    """When the user dependency rejects the request, the limit by user is not decided."""
    app = FastAPI()
    app.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    limited(app)
    assert statuses(app, *["/"] * 3, headers={"x-user": "stranger"}) == [401, 401, 401]


def test_the_handler_of_the_application_replaces_later_rejections() -> None:
    """A handler for the error makes the response, with the headers. Without a handler the middleware does."""
    app = FastAPI()

    @app.exception_handler(RateLimitExceeded)
    async def rejected(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
        return PlainTextResponse("wait", status_code=418)

    app.add_api_route("/", view, dependencies=[Depends(by_user("1/minute"))])
    limited(app)
    response = [ask(app, headers={"x-user": "ann"}) for _ in range(2)][-1]
    assert (response.status_code, response.text) == (418, "wait")
    assert (response.headers["retry-after"], response.headers["ratelimit"]) == ("60", '"users";r=0;t=60')


def test_any_feature_may_come_from_a_dependency() -> None:
    """Custom and several features, including ``Depends``, come from dependencies. Others come from the request."""

    async def tenant(x_tenant: Annotated[str, Header()]) -> str:
        return x_tenant

    features = {"tenant": tenant, "user": Depends(current_user)}
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", key=["tenant", "user|ip"], features=features))])
    app.add_api_route("/", view)
    limited(app)
    requests = [("a", "ann"), ("a", ""), ("b", "ann"), ("a", "ann"), ("a", "")]
    codes = [ask(app, headers={"x-tenant": t, **({"x-user": u} if u else {})}).status_code for t, u in requests]
    assert codes == [200, 200, 200, 429, 429]


def test_a_feature_of_one_limit_is_missing_for_others() -> None:
    """Another rule by this feature would never apply, so it is a mistake at the start, as without the dependency."""
    features = {"tenant": current_user}
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", key=["tenant"], features=features, name="given"))])
    app.add_api_route("/", view, dependencies=[Depends(RateLimit("1/minute", key=["tenant"], name="other"))])
    with pytest.raises(ConfigError, match=r"rule 'other': key: uses the feature 'tenant', but nothing provides it"):
        ask(limited(app))


def test_later_decisions_respect_methods_and_exemptions() -> None:
    """A later limit has the match of a rule, and does not apply to an exempt view."""
    app = FastAPI(dependencies=[Depends(by_user("1/minute", match={"methods": ["POST"]}))])
    app.add_api_route("/", view, methods=["GET", "POST"])
    app.add_api_route("/free", exempt("users")(view), methods=["POST"])
    limited(app)
    ann: Any = {"headers": {"x-user": "ann"}}
    requests = [("GET", "/"), ("POST", "/"), ("GET", "/"), ("POST", "/"), ("POST", "/free"), ("POST", "/free")]
    assert [ask(app, path, method, **ann).status_code for method, path in requests] == [200, 200, 200, 429, 200, 200]


def test_a_later_limit_may_need_the_body() -> None:
    """The middleware reads the body ahead for the limit, and the view receives the body."""
    app = FastAPI()
    by_both = RateLimit("1/minute", key=["user", "json:name"], features={"user": current_user})

    @app.post("/", dependencies=[Depends(by_both)])
    async def make(item: dict[str, str]) -> str:
        return item["name"]

    limited(app)
    responses = [ask(app, "/", "POST", json={"name": name}, headers={"x-user": "ann"}) for name in ("a", "b", "a")]
    assert [(response.status_code, response.text[:3]) for response in responses] == [
        (200, '"a"'),
        (200, '"b"'),
        (429, '{"t'),
    ]
