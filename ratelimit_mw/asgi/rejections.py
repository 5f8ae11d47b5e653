"""Rejections as errors of Starlette and FastAPI, their handlers in an application, and their description in OpenAPI."""

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache
from inspect import iscoroutinefunction
from typing import Any, Final

from ..decision import RateLimitExceeded, Verdict
from ..errors import RateLimitError
from ..http.admission import ADMISSION
from ..http.limits import HttpLimiter, HttpLimits
from .router import AppRoute, is_of_framework, layers_of

_ERRORS: Final = (RateLimitExceeded, RateLimitError)
_HEADERS: Final = {
    "X-RateLimit-Limit": ("The maximum number of requests that the limit allows at once.", "integer"),
    "X-RateLimit-Remaining": ("The requests that remain.", "integer"),
    "X-RateLimit-Reset": ("Seconds until the limit is fully reset.", "integer"),
    "RateLimit-Policy": ("The limits: quota (q) per window in seconds (w).", "string"),
    "RateLimit": ("The limits that reject: the remaining quota (r) and the seconds to wait (t).", "string"),
    "Retry-After": ("Seconds until the same request is allowed.", "integer"),
}
_EPOCH: Final = {"X-RateLimit-Reset": ("When the limit is fully reset, in seconds since 1970.", "integer")}


def http_error(verdict: Verdict) -> RateLimitExceeded:
    """Return a rejection as an error of Starlette or FastAPI, which also is a ``RateLimitExceeded``."""
    return (_http_error() if "starlette" in sys.modules else RateLimitExceeded)(verdict)


@cache
def _http_error() -> type[RateLimitExceeded]:
    """Return the error for rejections: also the ``HTTPException`` of the framework. That of FastAPI is Starlette's."""
    if "fastapi" in sys.modules:
        from fastapi import HTTPException
    else:
        from starlette.exceptions import HTTPException  # type: ignore[assignment]

    class RateLimitHTTPException(RateLimitExceeded, HTTPException):
        def __init__(self, verdict: Verdict) -> None:
            HTTPException.__init__(self, verdict.status, RateLimitExceeded.describe(verdict))
            self.verdict = verdict

        def __reduce__(self) -> tuple[Any, ...]:
            return http_error, (self.verdict,)

        def __str__(self) -> str:
            return self.describe(self.verdict)

    return RateLimitHTTPException


def handler_of(app: Any, status: int) -> Callable[[Any, Any], Any] | None:
    """Return an application's own handler for rejections: for their error, their status, or ``HTTPException``."""
    registered: Mapping[Any, Any] = getattr(app, "exception_handlers", {})
    kinds = (*_ERRORS, status, *(each for each in _http_error().__mro__ if each is not Exception))
    return next((registered[kind] for kind in kinds if kind in registered and not _is_default(registered[kind])), None)


def has_handlers(app: Any) -> bool:
    """Return whether an application has error handlers of its own."""
    return not all(map(_is_default, getattr(app, "exception_handlers", {}).values()))


async def own_response(app: Any, verdict: Verdict, scope: Any, receive: Any) -> Callable[..., Awaitable[None]] | None:
    """Return the response of an application's own handler; None without one."""
    handler = handler_of(app, verdict.status)
    if handler is None:
        return None
    from starlette.requests import Request  # only an application of Starlette has handlers

    return await _call(handler, Request({"app": app, **scope}, receive), verdict)  # type: ignore[no-any-return]


async def _call(handler: Callable[[Any, Any], Any], request: Any, verdict: Verdict) -> Any:
    from starlette.concurrency import run_in_threadpool

    error = http_error(verdict)
    if iscoroutinefunction(handler):
        return await handler(request, error)
    return await run_in_threadpool(handler, request, error)


def _is_default(handler: Any) -> bool:
    return handler is _respond or is_of_framework(handler)


def handle_rejections(app: Any) -> None:
    """Give an application of Starlette a handler for the rejections of its views, where it has none for the error.

    Starlette handles errors of a view inside the middleware, in a mounted application where that is mounted. Each
    application responds with 500 to an error without a handler, such as a rejection that is no ``HTTPException``.
    """
    if any(error in getattr(app, "exception_handlers", _ERRORS) for error in _ERRORS):
        return
    for layer in (app, *layers_of(app.middleware_stack)):  # a stack that is built later takes those of the application
        if hasattr(layer, "add_exception_handler"):
            layer.add_exception_handler(RateLimitExceeded, _respond)


async def _respond(request: Any, error: RateLimitExceeded) -> Any:
    """Respond by the application's own handler, else as the middleware does. Raise the rejection without one."""
    admission = request.scope.get(ADMISSION)
    if admission is None or request.scope["type"] != "http":
        raise error
    admission.verdict = verdict = error.verdict
    if (handler := handler_of(request.scope.get("app"), verdict.status)) is not None:
        return await _call(handler, request, verdict)
    return lambda _, receive, send: admission.reject(receive, send)


def describe_limits(app: Any, http_limiter: HttpLimiter, routes: Collection[AppRoute]) -> None:
    """Replace ``openapi`` of a FastAPI application: the same description, with the response of limited operations."""
    described: Callable[[], dict[str, Any]] = getattr(app.openapi, "described", app.openapi)

    def openapi() -> dict[str, Any]:
        schema, limits = described(), http_limiter.in_force
        response = _describe_response(limits.writer.names, limits.settings.reset)
        for route in routes:
            operations = schema.get("paths", {}).get(getattr(route.entry, "path_format", ""), {})
            for method in route.methods:
                if method.lower() in operations and _is_limited(limits, route, method):
                    operations[method.lower()].setdefault("responses", {}).setdefault("429", response)
        return schema

    openapi.described = described  # type: ignore[attr-defined]
    app.openapi = openapi


def _is_limited(limits: HttpLimits, route: AppRoute, method: str) -> bool:
    """Return whether a rule that may reject applies to the route. Its template takes the place of a path."""
    plan = limits.rules.plan(method, route.endpoint, "", route.destination(method))
    return any(not rule.shadow for rule in plan.rules)


def _describe_response(headers: Collection[bytes], reset: str) -> dict[str, Any]:
    """Return the response to a rejection. Its body depends on ``Accept``, and may be your own."""
    described = {
        title: {"description": meaning, "schema": {"type": kind}}
        for title, (meaning, kind) in (_HEADERS | (_EPOCH if reset == "epoch" else {})).items()
        if title.lower().encode() in (*headers, b"retry-after")
    }
    return {"description": "Too Many Requests", "headers": described}
