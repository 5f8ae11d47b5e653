"""An application's own answer to a refusal: the handler that it has registered for ``RateLimitExceeded``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ..decision import Verdict
from ..errors import RateLimitError, RateLimitExceeded

__all__ = ["Answer", "answer_of"]

Answer = Callable[[Verdict], Callable[..., Awaitable[None]]]
"""Makes of a verdict the ASGI application that answers."""

_HANDLED: Final = (RateLimitExceeded, RateLimitError)


def answer_of(app: Any) -> Answer | None:
    """How an application of Starlette or FastAPI answers refusals; None when it leaves that to the middleware."""
    registered = getattr(app, "exception_handlers", None) or {}
    handlers = {kind: registered[kind] for kind in _HANDLED if kind in registered}
    if not handlers:
        return None
    from starlette.middleware.exceptions import ExceptionMiddleware  # whoever has handlers has Starlette

    def answer(verdict: Verdict) -> Callable[..., Awaitable[None]]:
        async def refuse(*_: object) -> None:
            raise RateLimitExceeded(verdict)

        handled = ExceptionMiddleware(refuse, handlers=handlers)

        async def answered(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
            await handled({"app": app, **scope}, receive, send)

        return answered

    return answer
