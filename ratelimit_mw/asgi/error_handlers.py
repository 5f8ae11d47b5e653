"""The application's own error handlers for a rejection: for ``RateLimitExceeded``, or for its status."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitError, RateLimitExceeded

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
    from starlette.exceptions import HTTPException
    from starlette.middleware.exceptions import ExceptionMiddleware

    def handle(verdict: Verdict) -> Callable[..., Awaitable[None]] | None:
        status = verdict.status
        if handlers.keys().isdisjoint((status, *_ERRORS)):
            return None

        async def reject(*_: object) -> None:
            if not handlers.keys().isdisjoint(_ERRORS):
                raise RateLimitExceeded(verdict)
            error = HTTPException(status)
            error.verdict = verdict  # type: ignore[attr-defined]
            raise error

        middleware = ExceptionMiddleware(reject, handlers=handlers)

        return lambda scope, receive, send: middleware({"app": app, **scope}, receive, send)

    return handle


def handles_status(app: Any, status: int) -> bool:
    """Return whether an application handles rejections of this status itself."""
    return not _handlers_of(app).keys().isdisjoint((status, *_ERRORS))


def _handlers_of(app: Any) -> dict[Any, Any]:
    registered = getattr(app, "exception_handlers", None) or {}
    return {kind: registered[kind] for kind in (*_ERRORS, *_STATUSES) if kind in registered}
