"""A middleware that Starlette could not build: what is wrong is told to the server when the application starts.

Starlette builds its middleware when it is first called. Of an error raised there, servers that are not told otherwise
(uvicorn without ``--lifespan on``) think that nobody wants to hear of the start, and go on to answer every request
with 500.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import isfunction
from types import FrameType
from typing import Any, Final, Never

__all__ = ["BrokenMiddleware", "is_built_by_starlette", "stands_alone"]

_BUILDER: Final = "build_middleware_stack"
_FRAMEWORKS: Final = {"starlette", "fastapi"}


class BrokenMiddleware:
    """Stands in the place of ``RouteIndexes``: who asks for routes, at the start or at a request, hears the error."""

    def __init__(self, error: Exception) -> None:
        self._error, self._raised_at = error, error.__traceback__

    def index_of(self, scope: Mapping[str, Any]) -> Never:
        raise self._error.with_traceback(self._raised_at)  # not where it was raised last, which would grow


def is_built_by_starlette() -> bool:
    """Whether an application of Starlette or FastAPI is building its middleware now."""
    return any(frame.f_code.co_name == _BUILDER for frame in _frames())


def stands_alone(app: object) -> bool:
    """Whether nobody can have routes for a middleware around this: a function that no framework hands to it.

    What is no function may get routes until it starts.
    """
    return isfunction(app) and not any(_package_of(frame) in _FRAMEWORKS for frame in _frames())


def _frames() -> Iterator[FrameType]:
    """Who called, and who called that."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
