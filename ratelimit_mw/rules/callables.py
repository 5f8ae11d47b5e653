"""Mistakes are told where they are made: what a function of yours will be called with, and which line called this.

A function that cannot be called is found when it is given, not at the first request.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError

__all__ = ["caller", "checked_call"]

_PACKAGE = __name__.partition(".")[0]
_TEXT = "<string>"
"""What Python calls the file of an annotation that is kept as text; its line is lost."""


def checked_call(function: Any, *given: str) -> Callable[..., Any]:
    """The function, which is to be called with what is ``given``; ``ConfigError`` where it cannot be.

    >>> checked_call(lambda: "alice", "the request")
    Traceback (most recent call last):
    ...
    ratelimit_mw.errors.ConfigError: expected a function of the request; got <lambda>(): too many positional arguments
    """
    expected = f"expected a function of {' and '.join(given)}; got"
    if not callable(function):
        raise ConfigError(f"{expected} {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return function  # type: ignore[no-any-return]
    try:
        signature.bind(*given)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"{expected} {name}{signature}: {error}") from None
    return function  # type: ignore[no-any-return]


def caller() -> str:
    """The file and line from which this package was called: "shop/views.py:12"; the file alone of a text."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file == _TEXT and "__file__" in frame.f_globals:
        return str(frame.f_globals["__file__"])
    return f"{file}:{frame.f_lineno}"
