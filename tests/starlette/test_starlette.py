"""The Starlette middleware decides rules of the file and views with decorators together."""

from __future__ import annotations

from typing import Any

import pytest
from calls import ask
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.exceptions import HTTPException
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette_apps import application, asynchronous, hello, statuses
from tables import each

from ratelimit_mw import Limiter, RateLimitError, Rule
from ratelimit_mw.starlette import RateLimitExceeded, RateLimitMiddleware, check
from ratelimit_mw.testing import ManualClock


def test_the_user_is_the_user_of_the_authentication_middleware() -> None:
    """Users have their own counts when Starlette's AuthenticationMiddleware runs outside, from any IP address."""

    class ByHeader(AuthenticationBackend):
        async def authenticate(self, conn: Any) -> Any:
            name = conn.headers.get("x-user")
            return (AuthCredentials(), SimpleUser(name)) if name else None

    app = application([Route("/", hello)], Rule(name="users", limits="1/minute", key=["user"]))
    app.add_middleware(AuthenticationMiddleware, backend=ByHeader())
    codes = [ask(app, headers={"x-user": user} if user else {}).status_code for user in ("ann", "bob", "ann", "", "")]
    assert codes == [200, 200, 429, 200, 200]


# -- rejections --------------------------------------------------------------------------------------------


async def _teapot(request: Any, error: RateLimitExceeded) -> Response:
    return PlainTextResponse(f"{request.url.path}: {error}", status_code=418)


def _sync_teapot(request: Any, error: RateLimitExceeded) -> Response:
    return PlainTextResponse(f"{request.url.path}: {error}", status_code=418)


@each("handler", [_teapot, _sync_teapot])
@each("kind", [RateLimitExceeded, RateLimitError])
def test_the_handler_of_the_application_replaces_the_rejection(handler: Any, kind: Any) -> None:
    """A handler for the error or its base class makes the response, and the headers are added."""
    app = application([Route("/", asynchronous)], exception_handlers={kind: handler})
    response = [ask(app) for _ in range(3)][-1]
    assert (response.status_code, response.headers["retry-after"]) == (418, "60")
    assert response.text.startswith("/: rejected by asynchronous (2/minute): retry after")
    assert response.headers["x-ratelimit-remaining"] == "0"


@each("is_async", [True, False])
def test_a_handler_for_the_status_replaces_the_rejection(is_async: bool) -> None:
    """The handler receives a RateLimitExceeded, which is Starlette's HTTPException, too. The headers are added."""

    def handler(request: Any, error: Any) -> Response:
        assert isinstance(error, RateLimitExceeded)
        assert isinstance(error, HTTPException)
        parts = (error.status_code, error.detail.partition(":")[0], error.verdict.rules)
        return PlainTextResponse(f"{request.url.path}: {parts}", status_code=418)

    async def ahandler(request: Any, error: Any) -> Response:
        return handler(request, error)

    app = application([Route("/", asynchronous)], exception_handlers={429: ahandler if is_async else handler})
    response = [ask(app) for _ in range(3)][-1]
    detail = "rejected by asynchronous (2/minute)"
    assert response.text == f"/: (429, '{detail}', ('starlette_apps.asynchronous',))"
    assert (response.status_code, response.headers["retry-after"]) == (418, "60")


@each("status", [429, 403])
def test_a_handler_for_all_http_errors_shapes_the_rejection(status: int) -> None:
    """A handler for HTTPException handles rejections of the middleware and of views, whatever their status."""

    async def handler(request: Any, error: Any) -> Response:
        return PlainTextResponse(f"mine: {error.status_code} {error.detail[:11]}", status_code=error.status_code)

    async def checks(request: Any) -> Response:
        await check(request, "named")
        return PlainTextResponse("checked")

    settings = {
        "rules": [{"name": "named", "limits": "1/minute", "match": {"view": ""}}],
        "lists": {"deny": {"header:x-who": "mallory"}},
    }
    limiter = Limiter.from_settings(settings, clock=ManualClock(1e6))
    routes = [Route("/", asynchronous), Route("/checks", checks)]
    app = application(routes, exception_handlers={HTTPException: handler}, limiter=limiter)
    headers = {"x-who": "mallory"} if status == 403 else {}
    for path in ("/", "/checks"):
        response = [ask(app, path, headers=headers) for _ in range(3)][-1]
        assert response.text == f"mine: {status} rejected by"
        assert status == 403 or response.headers["retry-after"] == "60"


def test_a_mounted_application_shapes_the_rejections_of_its_views() -> None:
    """By its handler for HTTPException, else by that of the outer application."""

    def handlers(name: str) -> Any:
        async def handle(request: Any, error: Any) -> Response:
            return PlainTextResponse(f"{name} {error.status_code}", status_code=error.status_code)

        return {HTTPException: handle}

    async def checks(request: Any) -> Response:
        await check(request, "named")
        return PlainTextResponse("checked")

    routes = [Route("/", checks)]
    mounts = [
        Mount("/own", Starlette(routes=routes, exception_handlers=handlers("own"))),
        Mount("/none", Starlette(routes=routes)),
    ]
    only_checked = Rule(name="named", limits="1/minute", match={"view": ""})
    app = application([*mounts, *routes], only_checked, exception_handlers=handlers("outer"))
    responses = [ask(app, path) for path in ("/", "/own/", "/none/", "/")]
    assert [response.text for response in responses] == ["checked", "own 429", "outer 429", "outer 429"]
    assert {response.headers.get("retry-after") for response in responses} == {None, "60"}


def test_a_handler_for_another_status_is_not_called() -> None:
    """The handler for 403 responds to denied clients. Other rejections stay as they are."""
    app = application(
        [Route("/", asynchronous)],
        exception_handlers={403: _teapot},
        limiter=Limiter.from_settings({"lists": {"deny": {"header:x-who": "mallory"}}}, clock=ManualClock(1e6)),
    )
    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert ask(app, headers={"x-who": "mallory"}).status_code == 418


def test_the_handler_for_the_error_takes_precedence_over_the_status() -> None:
    """The handler for the more specific class is called."""

    async def other(request: Any, error: Any) -> Response:
        return PlainTextResponse("other")

    app = application([Route("/", asynchronous)], exception_handlers={429: other, RateLimitExceeded: _teapot})
    assert statuses(app, "/", "/", "/") == [200, 200, 418]


def test_the_rejection_of_the_middleware_takes_precedence_over_handlers() -> None:
    """``rejection`` of the middleware makes the response, whatever handlers the application has."""
    app = application(
        [Route("/", asynchronous)],
        exception_handlers={RateLimitExceeded: _teapot},
        rejection=lambda request, verdict: PlainTextResponse("mine", status_code=503),
    )
    assert statuses(app, "/", "/", "/") == [200, 200, 503]


def test_a_wrapped_application_handles_rejections_too() -> None:
    """A handler finds its application in the request, even when the middleware wraps the application."""

    async def handler(request: Any, error: Any) -> Response:
        return PlainTextResponse(type(request.app).__name__, status_code=418)

    inner = Starlette(routes=[Route("/", asynchronous)], exception_handlers={RateLimitExceeded: handler})
    app = RateLimitMiddleware(inner, limiter=Limiter(clock=ManualClock(1.0)))
    assert [ask(app).text for _ in range(3)] == ["async", "async", "Starlette"]


def test_a_rejection_after_the_response_has_begun_is_an_error() -> None:
    """A started response cannot be rejected, so the error reaches the server like any other."""
    own = Limiter([Rule(name="inner", limits="1/hour")])
    own.hit({})

    async def view(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        own.hit({}).raise_for_limit()

    app = RateLimitMiddleware(view, limiter=Limiter([Rule(limits="9/minute")]))
    with pytest.raises(RateLimitExceeded, match="inner"):
        ask(app)
