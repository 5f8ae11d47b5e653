"""A limit by the value of a dependency is decided by ``check`` in a dependency. Its rejection refunds nothing."""

from __future__ import annotations

from typing import Any

from calls import ask
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from fastapi_apps import by_user, limited, remaining, statuses, users, view
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.fastapi import RateLimitExceeded
from ratelimit_mw.testing import ManualClock

ANN: Any = {"headers": {"x-user": "ann"}}


def app_of(endpoint: Any = view) -> FastAPI:
    """Return an application whose view has a limit by user."""
    app = FastAPI()
    app.add_api_route("/", endpoint, dependencies=[Depends(by_user)])
    return app


def test_a_user_from_a_dependency_is_the_key() -> None:
    """Users have their own counts, and requests without a user are not limited. The headers show all limits."""
    app = limited(app_of(), Rule(name="file", limits="9/minute"), users("2/minute"))
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
    rules = [Rule(name="file", limits="9/minute"), users("1/minute")]
    limiter = Limiter(rules, clock=ManualClock(1_000_000.0))
    assert statuses(limited(app_of(), limiter=limiter), *["/"] * 4, **ANN) == [200, 429, 429, 429]
    assert [*remaining(limiter, "file", ip="192.0.2.7"), *remaining(limiter, "users", user="ann")] == [5, 0]


def test_a_later_rejection_passes_through_middleware() -> None:
    """The rejection passes through function middleware inside, and middleware outside sees a 429."""

    async def inside(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async def outside(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-seen"] = str(response.status_code)
        return response

    app = app_of()
    app.middleware("http")(inside)
    limited(app, users("1/minute")).middleware("http")(outside)
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
    inner, app = app_of(), FastAPI()
    prepare(inner)
    app.mount("/inner", inner)
    limited(app, users("1/minute"))
    responses = [ask(app, "/inner/", **ANN) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert (responses[1].headers["retry-after"], responses[1].json()["violated-policies"]) == ("60", ["users"])


def test_errors_of_a_mounted_application_stay_unchanged() -> None:
    """Only the error of a rejection is hidden."""

    def broken() -> None:
        raise HTTPException(500, "broken")

    app = FastAPI()
    app.mount("/inner", app_of(broken))
    response = ask(limited(app, users("9/minute")), "/inner/", **ANN)
    assert (response.status_code, response.json()) == (500, {"detail": "broken"})
    assert response.headers["x-ratelimit-remaining"] == "8"


def test_an_earlier_dependency_may_reject_first() -> None:
    """When the user dependency rejects the request, the limit by user is not decided."""
    app = limited(app_of(), users("1/minute"))
    assert statuses(app, *["/"] * 3, headers={"x-user": "stranger"}) == [401, 401, 401]


def test_the_handler_of_the_application_replaces_later_rejections() -> None:
    """A handler for the error makes the response, with the headers. Without a handler the middleware does."""

    async def rejected(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
        return PlainTextResponse("wait", status_code=418)

    app = app_of()
    app.exception_handler(RateLimitExceeded)(rejected)
    limited(app, users("1/minute"))
    response = [ask(app, **ANN) for _ in range(2)][-1]
    assert (response.status_code, response.text) == (418, "wait")
    assert (response.headers["retry-after"], response.headers["ratelimit"]) == ("60", '"users";r=0;t=60')
