"""The error handlers of an application shape the rejections of the Starlette middleware and of its views."""

from typing import Any

import pytest
from calls import ask
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette_apps import application, asynchronous, statuses
from tables import each

from ratelimit_mw import Limiter, RateLimitError, Rule
from ratelimit_mw.starlette import RateLimitExceeded, RateLimitMiddleware, check
from ratelimit_mw.testing import ManualClock

CHECKED = {"name": "named", "limits": "1/minute", "match": {"view": ""}}
DENIED = {"headers": {"x-who": "mallory"}}


async def _teapot(request: Any, error: RateLimitExceeded) -> Response:
    return _sync_teapot(request, error)


def _sync_teapot(request: Any, error: RateLimitExceeded) -> Response:
    return PlainTextResponse(f"{request.url.path}: {error}", status_code=418)


async def _other(request: Any, error: Any) -> Response:
    raise AssertionError("never called")


async def _by_code(request: Any, error: Any) -> Response:
    return PlainTextResponse(f"mine: {error.status_code} {error.detail[:11]}", status_code=error.status_code)


async def checks(request: Any) -> Response:
    await check(request, "named")
    return PlainTextResponse("checked")


@each("handler", [_teapot, _sync_teapot])
@each("kind", [RateLimitExceeded, RateLimitError, 429])
def test_the_handler_of_the_application_replaces_the_rejection(handler: Any, kind: Any) -> None:
    """A handler for the error, its base class or the status makes the response, and the headers are added."""
    app = application([Route("/", asynchronous)], exception_handlers={kind: handler, 403: _other})
    response = [ask(app) for _ in range(3)][-1]
    assert (response.status_code, response.headers["retry-after"]) == (418, "60")
    assert response.text.startswith("/: rejected by asynchronous (2/minute): retry after")
    assert response.headers["x-ratelimit-remaining"] == "0"


@each("status", [429, 403])
def test_a_handler_for_all_http_errors_shapes_the_rejection(status: int) -> None:
    """A handler for HTTPException handles rejections of the middleware and of views, whatever their status."""
    settings = {"rules": [CHECKED], "lists": {"deny": {"header:x-who": "mallory"}}}
    limiter = Limiter.from_settings(settings, clock=ManualClock(1e6))
    routes = [Route("/", asynchronous), Route("/checks", checks)]
    app = application(routes, exception_handlers={HTTPException: _by_code}, limiter=limiter)
    for path in ("/", "/checks"):
        response = [ask(app, path, **(DENIED if status == 403 else {})) for _ in range(3)][-1]
        assert response.text == f"mine: {status} rejected by"
        assert status == 403 or response.headers["retry-after"] == "60"


def test_a_mounted_application_shapes_the_rejections_of_its_views() -> None:
    """By its handler for HTTPException, else by that of the outer application."""

    async def outer(request: Any, error: Any) -> Response:
        return PlainTextResponse(f"outer {error.status_code}", status_code=error.status_code)

    routes = [Route("/", checks)]
    mounts = [
        Mount("/own", Starlette(routes=routes, exception_handlers={HTTPException: _by_code})),
        Mount("/none", Starlette(routes=routes)),
    ]
    app = application([*mounts, *routes], Rule(**CHECKED), exception_handlers={HTTPException: outer})
    responses = [ask(app, path) for path in ("/", "/own/", "/none/", "/")]
    assert [each.text for each in responses] == ["checked", "mine: 429 rejected by", "outer 429", "outer 429"]
    assert {response.headers.get("retry-after") for response in responses} == {None, "60"}


@each(
    ("handlers", "rejection", "status"),
    [
        ({403: _other}, None, 429),  # another status
        ({429: _other, RateLimitExceeded: _teapot}, None, 418),  # the error takes precedence
        ({RateLimitExceeded: _other}, lambda *_: PlainTextResponse("mine", status_code=503), 503),
    ],
)
def test_the_most_specific_handler_is_called(handlers: Any, rejection: Any, status: int) -> None:
    """``rejection`` of the middleware precedes the handlers of the application."""
    app = application([Route("/", asynchronous)], exception_handlers=handlers, rejection=rejection)
    assert statuses(app, "/", "/", "/") == [200, 200, status]


def test_a_wrapped_application_handles_rejections_too() -> None:
    """A handler finds its application in the request, even when the middleware wraps the application."""

    async def handler(request: Any, error: Any) -> Response:
        return PlainTextResponse(type(request.app).__name__, status_code=418)

    inner = Starlette(routes=[Route("/", asynchronous)], exception_handlers={RateLimitExceeded: handler})
    app = RateLimitMiddleware(inner, limiter=Limiter(clock=ManualClock(1.0)))
    assert [ask(app).text for _ in range(3)] == ["async", "async", "Starlette"]


def test_a_rejection_after_the_response_has_begun_is_an_error() -> None:
    """A started response cannot be rejected, so the error reaches the server like any other. It holds no slot."""
    own = Limiter([Rule(name="inner", limits="1/hour")])
    own.hit({})

    async def view(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        own.hit({}).raise_for_limit()

    app = RateLimitMiddleware(view, limiter=Limiter([Rule(limits="1 concurrent")]))
    for _ in range(2):
        with pytest.raises(RateLimitExceeded, match="inner"):
            ask(app)
