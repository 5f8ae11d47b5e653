"""Finds the application's own handler for a rejection: for ``RateLimitExceeded`` or for a status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitError, RateLimitExceeded

__all__ = ["Answer", "answer_of", "handles"]

Answer = Callable[[Verdict], Callable[..., Awaitable[None]] | None]
"""Makes of a verdict the ASGI application that answers; None where no handler is for it."""

_ERRORS: Final = (RateLimitExceeded, RateLimitError)
_STATUSES: Final = (429, 403, 503)


def answer_of(app: Any) -> Answer | None:
    """How an application of Starlette or FastAPI answers rejections; None when it leaves that to the middleware."""
    handlers = _handlers_of(app)
    if not handlers:
        return None
    # Whoever has handlers has Starlette.
    from starlette.exceptions import HTTPException
    from starlette.middleware.exceptions import ExceptionMiddleware

    def answer(verdict: Verdict) -> Callable[..., Awaitable[None]] | None:
        status = verdict.status or _STATUSES[0]
        if not _handle(handlers, status):
            return None

        async def reject(*_: object) -> None:
            if not handlers.keys().isdisjoint(_ERRORS):
                raise RateLimitExceeded(verdict)
            error = HTTPException(status)
            error.verdict = verdict  # type: ignore[attr-defined]
            raise error

        handled = ExceptionMiddleware(reject, handlers=handlers)

        async def answered(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
            await handled({"app": app, **scope}, receive, send)

        return answered

    return answer


def handles(app: Any, status: int) -> bool:
    """Whether an application answers rejections of this status itself."""
    return _handle(_handlers_of(app), status)


def _handlers_of(app: Any) -> dict[Any, Any]:
    registered = getattr(app, "exception_handlers", None) or {}
    return {kind: registered[kind] for kind in (*_ERRORS, *_STATUSES) if kind in registered}


def _handle(handlers: Mapping[Any, Any], status: int) -> bool:
    return status in handlers or not handlers.keys().isdisjoint(_ERRORS)
