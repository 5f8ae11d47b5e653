"""The application's own error handlers for a rejection: for ``RateLimitExceeded``, or for its status.

Starlette handles errors of a view inside of the middleware, and in a mounted application where that is mounted. So
each application has a handler of this package too.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitError, RateLimitExceeded
from ..http.layers import layers_of
from ..http.limiter import DECIDED

RejectionHandler = Callable[[Verdict], Callable[..., Awaitable[None]] | None]
"""Returns the ASGI application that responds to a rejection; None where the application has no handler for it."""

_ERRORS: Final = (RateLimitExceeded, RateLimitError)
_STATUSES: Final = (429, 403, 503)


def find_handler(app: Any) -> RejectionHandler | None:
    """Return the handler of an application of Starlette or FastAPI; None where it handles no rejections."""
    handlers = _handlers_of(app)
    if not handlers:
        return None
    # Only an application of Starlette has handlers, so it is installed.
    from starlette.middleware.exceptions import ExceptionMiddleware

    def handle(verdict: Verdict) -> Callable[..., Awaitable[None]] | None:
        status = verdict.status
        if handlers.keys().isdisjoint((status, *_ERRORS)):
            return None

        async def reject(*_: object) -> None:
            if not handlers.keys().isdisjoint(_ERRORS):
                raise RateLimitExceeded(verdict)
            raise http_error(verdict)

        middleware = ExceptionMiddleware(reject, handlers=handlers)

        return lambda scope, receive, send: middleware({"app": app, **scope}, receive, send)

    return handle


def handles_status(app: Any, status: int) -> bool:
    """Return whether an application handles rejections of this status itself."""
    return not _handlers_of(app).keys().isdisjoint((status, *_ERRORS))


def _handlers_of(app: Any) -> dict[Any, Any]:
    registered = getattr(app, "exception_handlers", None) or {}
    own = {kind: registered[kind] for kind in (*_ERRORS, *_STATUSES) if kind in registered}
    return {kind: handler for kind, handler in own.items() if handler is not _respond}


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
    return lambda _, receive, send: admission.reject(receive, send)


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

    return RateLimitHTTPException


def http_error(verdict: Verdict) -> RateLimitExceeded:
    """Return a rejection as an error of Starlette or FastAPI, which also is a ``RateLimitExceeded``."""
    is_present = "starlette" in sys.modules
    return (_http_error() if is_present else RateLimitExceeded)(verdict)
