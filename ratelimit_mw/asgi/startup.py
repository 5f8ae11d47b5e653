"""Errors of a middleware that Starlette builds late: the server hears of them when the application starts.

Starlette builds its middleware at its first call. A server (uvicorn without ``--lifespan on``) takes an error there for
an application without lifespan support, and then responds to each request with 500.
"""

from inspect import isfunction
from traceback import walk_stack
from typing import Any, Final, Never

_BUILDER: Final = "build_middleware_stack"
_FRAMEWORKS: Final = {"starlette", "fastapi"}


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
    return any(frame.f_code.co_name == _BUILDER for frame, _ in walk_stack(None))


def stands_alone(app: object) -> bool:
    """Return whether no routes can be known: the application is a function, and no framework passes it.

    Other applications may still get routes until they start.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_stack(None)]
    return isfunction(app) and _FRAMEWORKS.isdisjoint(module.partition(".")[0] for module in modules)
