"""A limit by a key of a dependency is decided in that dependency, and its rejection refunds nothing."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from calls import ask
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Security
from fastapi.responses import PlainTextResponse
from fastapi_apps import by_user, current_user, limited, remaining, statuses, view
from tables import each

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.fastapi import RateLimit, RateLimitExceeded, exempt
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.testing import ManualClock

ANN: Any = {"headers": {"x-user": "ann"}}


def app_of(*dependencies: Any, endpoint: Any = view, **options: Any) -> FastAPI:
    """Return an application with these dependencies of its view."""
    app = FastAPI()
    app.add_api_route("/", endpoint, dependencies=dependencies, **options)
    return app


def limiter_of(name: str, limits: str = "9/minute") -> Limiter:
    return Limiter([Rule(name=name, limits=limits)], clock=ManualClock(1_000_000.0))


def test_a_user_from_a_dependency_is_the_key() -> None:
    """Users have their own counts, and requests without a user are not limited. The headers show all limits."""
    app = limited(app_of(by_user()), limiter=limiter_of("file"))
    responses = [ask(app, headers={"x-user": user} if user else {}) for user in ("ann", "ann", "bob", "ann", "")]
    assert [response.status_code for response in responses] == [200, 200, 200, 429, 200]
    assert [response.headers.get("ratelimit") for response in responses] == [
        '"file";r=8;t=60, "users";r=1;t=60',
        '"file";r=7;t=60, "users";r=0;t=60',
        '"file";r=6;t=60, "users";r=1;t=60',
        '"users";r=0;t=60',
        '"file";r=4;t=60',
    ]
    assert [response.headers["x-ratelimit-limit"] for response in responses] == ["2", "2", "2", "2", "9"]
    assert responses[3].json()["violated-policies"] == ["users"]
    assert responses[3].headers["retry-after"] == "60"


def test_a_later_rejection_keeps_earlier_costs() -> None:
    """Dependencies have run between the decisions, so the earlier ones stay consumed."""
    limiter = limiter_of("file")
    first = RateLimit("9/minute", key=["user"], features={"user": current_user}, name="first")
    app = limited(app_of(first, by_user("1/minute")), limiter=limiter)
    assert statuses(app, *["/"] * 4, **ANN) == [200, 429, 429, 429]
    remainder = limiter.peek({"ip": "192.0.2.7"}, cost=0).decisions[0].remaining
    assert [remainder, *remaining(limiter, "first", user="ann"), *remaining(limiter, "users", user="ann")] == [5, 5, 0]


def test_the_innermost_middleware_decides_a_later_limit() -> None:
    """Both know the limit, but only one of them counts it."""
    inner, outer = limiter_of("in"), limiter_of("out")
    app = limited(limited(app_of(by_user()), limiter=inner), limiter=outer)
    assert statuses(app, "/", **ANN) == [200]
    assert [*remaining(inner, "users", user="ann"), *remaining(outer, "users", user="ann")] == [1, 2]


def test_a_dependency_called_twice_counts_once() -> None:
    """With ``use_cache=False`` or scopes, FastAPI calls the dependency twice, and the request consumes once."""
    users, everyone = by_user("2/minute"), RateLimit("9/minute", name="everyone")
    scoped = [Security(limit, scopes=["read"]) for limit in (users, everyone)]
    app = limited(app_of(Depends(users), Depends(everyone), Depends(users, use_cache=False), *scoped))
    assert statuses(app, *["/"] * 3, **ANN) == [200, 200, 429]
    assert ask(app).headers["x-ratelimit-remaining"] == "5"


def test_a_feature_of_a_dependency_uses_no_other_source(caplog: pytest.LogCaptureFixture) -> None:
    """The middleware does not call its own function, and does not log a missing source of users."""
    calls: list[str] = []

    async def other(request: Any) -> str:
        calls.append(request["path"])
        return "other"

    warn.cache_clear()
    for features in ({}, {"user": other}):
        app = limited(app_of(by_user("1/minute")), features=features)
        assert statuses(app, *["/"] * 2, **ANN) == [200, 429]
    assert (calls, [record.getMessage() for record in caplog.records if "user" in record.getMessage()]) == ([], [])


def test_a_later_rejection_passes_through_middleware() -> None:
    """The rejection passes through function middleware inside, and middleware outside sees a 429."""

    async def inside(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async def outside(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-seen"] = str(response.status_code)
        return response

    app = app_of(by_user("1/minute"))
    app.middleware("http")(inside)
    limited(app).middleware("http")(outside)
    responses = [ask(app, **ANN) for _ in range(2)]
    assert [result.headers["x-seen"] for result in responses] == ["200", "429"]
    assert responses[1].headers["retry-after"] == "60"


async def respond_to_errors(request: Request, call_next: Any) -> Any:
    try:
        return await call_next(request)
    except RateLimitExceeded:
        return PlainTextResponse("broken", 500)


@each(
    "prepare",
    [
        lambda inner: None,
        lambda inner: inner.exception_handler(Exception)(lambda request, error: PlainTextResponse("broken", 500)),
        lambda inner: inner.middleware("http")(respond_to_errors),
    ],
)
def test_a_later_rejection_in_a_mounted_application_is_a_429(prepare: Any) -> None:
    """Starlette sends a 500 for errors of a mounted application, but the client receives the rejection."""
    inner, app = app_of(by_user("1/minute")), FastAPI()
    prepare(inner)
    app.mount("/inner", inner)
    limited(app)
    responses = [ask(app, "/inner/", **ANN) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert (responses[1].headers["retry-after"], responses[1].json()["violated-policies"]) == ("60", ["users"])


def test_errors_of_a_mounted_application_stay_unchanged() -> None:
    """Only the error of a rejection is hidden."""

    def broken() -> None:
        raise HTTPException(500, "broken")

    app = FastAPI()
    app.mount("/inner", app_of(by_user("9/minute"), endpoint=broken))
    response = ask(limited(app), "/inner/", **ANN)
    assert (response.status_code, response.json()) == (500, {"detail": "broken"})
    assert response.headers["x-ratelimit-remaining"] == "8"


def test_an_earlier_dependency_may_reject_first() -> None:
    """When the user dependency rejects the request, the limit by user is not decided."""
    app = limited(app_of(by_user("1/minute")))
    assert statuses(app, *["/"] * 3, headers={"x-user": "stranger"}) == [401, 401, 401]


def test_the_handler_of_the_application_replaces_later_rejections() -> None:
    """A handler for the error makes the response, with the headers. Without a handler the middleware does."""

    async def rejected(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
        return PlainTextResponse("wait", status_code=418)

    app = app_of(by_user("1/minute"))
    app.exception_handler(RateLimitExceeded)(rejected)
    limited(app)
    response = [ask(app, **ANN) for _ in range(2)][-1]
    assert (response.status_code, response.text) == (418, "wait")
    assert (response.headers["retry-after"], response.headers["ratelimit"]) == ("60", '"users";r=0;t=60')


def test_any_feature_may_come_from_a_dependency() -> None:
    """Custom and several features, including ``Depends``, come from dependencies. Others come from the request."""

    async def tenant(x_tenant: Annotated[str, Header()]) -> str:
        return x_tenant

    features = {"tenant": tenant, "user": Depends(current_user)}
    app = limited(app_of(RateLimit("1/minute", key=["tenant", "user|ip"], features=features)))
    requests = [("a", "ann"), ("a", ""), ("b", "ann"), ("a", "ann"), ("a", "")]
    codes = [ask(app, headers={"x-tenant": t, **({"x-user": u} if u else {})}).status_code for t, u in requests]
    assert codes == [200, 200, 200, 429, 429]


def test_a_feature_of_one_limit_is_missing_for_others() -> None:
    """Another rule by this feature would never apply, so it is a mistake at the start, as without the dependency."""
    given = RateLimit("1/minute", key=["tenant"], features={"tenant": current_user}, name="given")
    app = limited(app_of(given, RateLimit("1/minute", key=["tenant"], name="other")))
    with pytest.raises(ConfigError, match="rule 'other': key: uses the feature 'tenant'"):
        ask(app)


def test_a_later_limit_has_the_match_of_a_rule_and_the_exemptions_of_the_view() -> None:
    app = FastAPI(dependencies=[by_user("1/minute", match={"methods": ["POST"]})])
    app.add_api_route("/", view, methods=["GET", "POST"])
    app.add_api_route("/free", exempt("users")(view), methods=["POST"])
    limited(app)
    requests = [("GET", "/"), ("POST", "/"), ("GET", "/"), ("POST", "/"), ("POST", "/free"), ("POST", "/free")]
    assert [ask(app, path, method, **ANN).status_code for method, path in requests] == [200, 200, 200, 429, 200, 200]


def test_a_later_limit_may_need_the_body() -> None:
    """The middleware reads the body ahead for the limit, and the view receives the body."""

    async def make(item: dict[str, str]) -> str:
        return item["name"]

    by_both = RateLimit("1/minute", key=["user", "json:name"], features={"user": current_user})
    app = limited(app_of(by_both, endpoint=make, methods=["POST"]))
    responses = [ask(app, "/", "POST", json={"name": name}, **ANN) for name in ("a", "b", "a")]
    assert [(each.status_code, each.text[:3]) for each in responses] == [(200, '"a"'), (200, '"b"'), (429, '{"t')]
