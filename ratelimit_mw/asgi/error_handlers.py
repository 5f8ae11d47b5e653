"""The application's own error handlers for a rejection: for its error, its status, or ``HTTPException``.

Starlette handles errors of a view inside the middleware, and in a mounted application where that is mounted. So
each application has a handler of this package too.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitError, RateLimitExceeded
from ..http.layers import layers_of
from ..http.limits import DECIDED

RejectionHandler = Callable[[Verdict], Callable[..., Awaitable[None]] | None]
"""Returns the ASGI application that responds to a rejection; None where the application has no handler for it."""

_ERRORS: Final = (RateLimitExceeded, RateLimitError)
_STATUSES: Final = (429, 403, 503)
_FRAMEWORKS: Final = ("starlette", "fastapi")


def find_handler(app: Any) -> RejectionHandler | None:
    """Return the handler of an application of Starlette or FastAPI; None where it handles no rejections."""
    handlers = _handlers_of(app)
    if not handlers:
        return None
    # Only an application of Starlette has handlers, so it is installed.
    from starlette.middleware.exceptions import ExceptionMiddleware

    first = {kind: handlers[kind] for kind in _ERRORS if kind in handlers}  # Starlette prefers those of a status

    def handle(verdict: Verdict) -> Callable[..., Awaitable[None]] | None:
        if not _handle(handlers, verdict.status):
            return None

        async def reject(*_: object) -> None:
            raise http_error(verdict)

        middleware = ExceptionMiddleware(reject, handlers=first or handlers)

        return lambda scope, receive, send: middleware({"app": app, **scope}, receive, send)

    return handle


def handles_status(app: Any, status: int) -> bool:
    """Return whether an application handles rejections of this status itself."""
    return _handle(_handlers_of(app), status)


def _handle(handlers: Mapping[Any, Any], status: int) -> bool:
    return any(kind == status or isinstance(kind, type) for kind in handlers)


def _handlers_of(app: Any) -> dict[Any, Any]:
    """Return the handlers for rejections that are neither the framework's own nor that of this package."""
    registered = getattr(app, "exception_handlers", None) or {}
    kinds = {*_STATUSES, *_http_error().__mro__} - {Exception} if registered else set()
    return {kind: handler for kind, handler in registered.items() if kind in kinds and not _is_default(handler)}


def _is_default(handler: Any) -> bool:
    return handler is _respond or str(getattr(handler, "__module__", "")).partition(".")[0] in _FRAMEWORKS


def handle_rejections(app: Any) -> None:
    """Give an application of Starlette the handler of this package, where it has no handler for rejections."""
    # A stack that is built later takes the handlers of the application.
    for layer in layers_of(app) if getattr(app, "middleware_stack", None) else [app]:
        handlers = getattr(layer, "exception_handlers", getattr(layer, "_exception_handlers", None))
        if isinstance(handlers, dict) and handlers.keys().isdisjoint(_ERRORS):
            handlers[RateLimitExceeded] = _respond


async def _respond(request: Any, error: RateLimitExceeded) -> Any:
    """Return the ASGI application that responds to a rejection as the middleware does; raise it without one."""
    admissions: Mapping[object, Any] = request.scope.get(DECIDED, {})
    if not admissions or request.scope["type"] != "http":
        raise error
    admission = list(admissions.values())[-1]
    admission.verdict = error.verdict
    handler = find_handler(request.scope.get("app"))
    return lambda _, receive, send: admission.reject(receive, send, handler)


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


def http_error(verdict: Verdict) -> RateLimitExceeded:
    """Return a rejection as an error of Starlette or FastAPI, which also is a ``RateLimitExceeded``."""
    is_present = "starlette" in sys.modules
    return (_http_error() if is_present else RateLimitExceeded)(verdict)
