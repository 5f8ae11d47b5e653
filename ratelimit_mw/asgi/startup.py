"""The start and the end of an ASGI application. The server hears of errors of a middleware at the start.

Starlette builds its middleware at its first call. A server (uvicorn without ``--lifespan on``) takes an error there for
an application without lifespan support, and then responds to each request with 500.
"""

from __future__ import annotations

import sys
from inspect import isfunction
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, Final, Never

from ..errors import ConfigError

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware
    from .request import Message, Scope, Send

_BUILDER: Final = "build_middleware_stack"
_FRAMEWORKS: Final = {"starlette", "fastapi"}
_ENDS: Final = ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")


class BrokenMiddleware:
    """Takes the place of ``RouteIndexes`` after an error. It raises the error at the start, and at each request."""

    def __init__(self, error: Exception) -> None:
        self._error, self._traceback = error, error.__traceback__

    def index_of(self, scope: Any) -> Never:
        raise self._error.with_traceback(self._traceback)  # the traceback would otherwise grow with each raise

    match = index_of
    has_routes = True


def is_built_by_starlette() -> bool:
    """Return whether an application of Starlette or FastAPI is building its middleware now."""
    return any(frame.f_code.co_name == _BUILDER for frame, _ in walk_stack(sys._getframe(1)))


def stands_alone(app: object) -> bool:
    """Return whether no routes can be known: the application is a function, and no framework passes it.

    Other applications may still get routes until they start.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_stack(sys._getframe(1))]
    return isfunction(app) and _FRAMEWORKS.isdisjoint(module.partition(".")[0] for module in modules)


def lifespan_sender(middleware: RateLimitMiddleware, scope: Scope, send: Send) -> Send:
    """Return a ``send`` that reads the routes and opens the limiter at the start, and closes it at the end."""

    async def send_in_time(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            try:
                middleware.routes.index_of(scope)
            except ConfigError as error:
                if "app" not in scope:  # Starlette reports the error to the server
                    await send_in_time({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            await middleware.limiter.astart()
        if message["type"] in _ENDS and not isinstance(middleware.routes, BrokenMiddleware):
            await middleware.limiter.aclose()
        await send(message)

    return send_in_time
