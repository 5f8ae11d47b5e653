"""The guard around a limited view. It raises an error for a limit that no middleware has decided.

So a limit never goes missing silently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Final, Protocol

from ..errors import MissingMiddlewareError
from ..testmode import testmode
from .marks import ATTRIBUTE, Mark, ViewMarks

_DISPATCHERS: Final = ("dispatch", "dispatch_request")  # of class-based views in Starlette and Django, and in Flask


class Decider(Protocol):
    """A request that a middleware handles. ``marks`` are the limits that it has decided."""

    marks: Sequence[Mark]


current: ContextVar[Decider | None] = ContextVar("ratelimit_mw.current", default=None)
"""The request of this thread or task."""
get_current: Final = current.get
"""Return the request. For an imported object, Python builds a bound method at each call: these are bound once."""
set_current: Final = current.set


def require_decided(marks: Iterable[Mark]) -> None:
    """Raise ``MissingMiddlewareError`` unless one of the marks is decided, for decorators that mark several views."""
    marks = tuple(marks)
    now = current.get()
    if (now is None or set(now.marks).isdisjoint(marks)) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view, is_handled=now is not None)


def guard(view: Any, marked_on: Callable[..., object] | None = None) -> Any:
    """Put the guard around a view, whose signature stays the same. ``marked_on`` finds another marked object."""
    guarded: Any

    def require(args: tuple[Any, ...]) -> None:
        marks: ViewMarks = getattr(marked_on(*args) if marked_on else guarded, ATTRIBUTE)
        now = current.get()
        undecided = marks.every if now is None else [mark for mark in marks.every if mark not in now.marks]
        if undecided and not testmode.off:
            raise MissingMiddlewareError(undecided[0].view, is_handled=now is not None)

    if inspect.iscoroutinefunction(view):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            require(args)
            return await view(*args, **kwargs)

        guarded = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            require(args)
            return view(*args, **kwargs)

        guarded = call
    # FastAPI evaluates annotations that are text with the globals of the function that has them.
    if isinstance(view, FunctionType):
        guarded = FunctionType(guarded.__code__, view.__globals__, None, None, guarded.__closure__)
    return functools.wraps(view)(guarded)


def guard_entries(view: type) -> None:
    """Put the guard around the methods that enter a class-based view."""
    for name in _DISPATCHERS:
        if hasattr(view, name) and ATTRIBUTE not in vars(view):
            setattr(view, name, guard(getattr(view, name), lambda self, *_: type(self)))
