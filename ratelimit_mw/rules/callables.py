"""Check functions of the application when they are passed in, and find the line that called this package."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError

_PACKAGE = __name__.partition(".")[0]
_TEXT = "<string>"
"""The file name of an annotation that is kept as text. Its line is not known."""


def checked_call(function: Any, *arguments: str) -> Callable[..., Any]:
    """Return the function; ``ConfigError`` unless it can be called with these arguments, given in words.

    >>> checked_call(lambda: "alice", "the request")
    Traceback (most recent call last):
    ...
    ratelimit_mw.errors.ConfigError: expected a function of the request; got <lambda>(): too many positional arguments
    """
    expected = f"expected a function of {' and '.join(arguments)}; got"
    if not callable(function):
        raise ConfigError(f"{expected} {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return function  # type: ignore[no-any-return]
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"{expected} {name}{signature}: {error}") from None
    return function  # type: ignore[no-any-return]


def call_site() -> str:
    """Return the file and line that called this package, such as "shop/views.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file == _TEXT and "__file__" in frame.f_globals:
        return str(frame.f_globals["__file__"])
    return f"{file}:{frame.f_lineno}"
