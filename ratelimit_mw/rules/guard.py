"""The guard around a limited view. It decides what the middleware has not decided, when the view is called.

Without a middleware it raises an error, so a limit never goes missing silently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from ..errors import ConfigError, MissingMiddlewareError
from ..testmode import testmode
from .marks import ATTRIBUTE, Mark, ViewMarks

_DISPATCHERS: Final = ("dispatch", "dispatch_request")  # of class-based views in Starlette and Django, and in Flask


class Decider(Protocol):
    """A request that a middleware handles: ``marks`` are decided, others are decided where they are called."""

    marks: Sequence[Mark]

    def decide_marks(self, marks: Sequence[Mark]) -> None:
        """Decide the limits of a function that the view calls. Raises a rejection."""

    async def adecide_marks(self, marks: Sequence[Mark]) -> None:
        """Async form of ``decide_marks``."""


current: ContextVar[Decider | None] = ContextVar("ratelimit_mw.current", default=None)
"""The request of this thread or task."""
get_current: Final = current.get
"""Return the request. For an imported object, Python builds a bound method at each call: these are bound once."""
set_current: Final = current.set
FIND_DIRECT: Final[list[Callable[[Sequence[Any]], Decider | None]]] = []
"""Functions of adapters. They find the request in the arguments, if a test calls a view without a middleware."""


def require_decided(marks: Iterable[Mark], view: Any = None) -> None:
    """Raise ``MissingMiddlewareError`` unless one of the marks is decided, for decorators that mark several views.

    ``view`` is a method that is bound to its view, which a test may have called directly.
    """
    marks = tuple(marks)
    now = current.get()
    if now is None and view is not None and not testmode.off and (direct := _find_direct((view.func.__self__,))):
        direct.decide_marks(marks)
    elif (now is None or set(now.marks).isdisjoint(marks)) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view)


def _find_direct(args: Sequence[Any]) -> Decider | None:
    return next(filter(None, (find(args) for find in FIND_DIRECT)), None)


def guard(view: Any, marked_on: Callable[..., object] | None = None) -> Any:
    """Put the guard around a view, whose signature stays the same. ``marked_on`` finds another marked object."""
    guarded: Any

    def undecided(args: tuple[Any, ...]) -> tuple[Decider | None, Sequence[Mark]]:
        return _undecided(marked_on(*args) if marked_on else guarded, args)

    if inspect.iscoroutinefunction(view):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            decider, marks = undecided(args)
            if decider is not None:
                await decider.adecide_marks(marks)
            return await view(*args, **kwargs)

        guarded = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            decider, marks = undecided(args)
            if decider is not None:
                decider.decide_marks(marks)
            return view(*args, **kwargs)

        guarded = call
    # FastAPI evaluates annotations that are text with the globals of the function that has them.
    if isinstance(view, FunctionType):
        guarded = FunctionType(guarded.__code__, view.__globals__, None, None, guarded.__closure__)
    return functools.wraps(view)(guarded)


_GUARDS: Final = frozenset(const for const in guard.__code__.co_consts if isinstance(const, CodeType))


def inside_guard(view: Any) -> Any:
    """Return the view inside the guard of this package; a view without a guard as it is."""
    return view.__wrapped__ if getattr(view, "__code__", None) in _GUARDS else view


def guard_entries(view: type, marks: ViewMarks) -> None:
    """Put the guard around the methods that enter a class. Raise ``ConfigError`` where no code can enter it."""
    before = vars(view).get(ATTRIBUTE)
    guarded = [] if before is None else _entries(view, before)
    for name in _entries(view, marks):
        if name not in guarded:
            setattr(view, name, guard(getattr(view, name), lambda self, *_: type(self)))


def _entries(view: type, marks: ViewMarks) -> list[str]:
    """Return the methods that enter a class-based view. Without any, your own code may only call its objects."""
    names = [name for name in _DISPATCHERS if hasattr(view, name)]
    unrouted = [mark for mark in marks.every if mark.rule.unrouted]
    if names or not unrouted or hasattr(view, "__await__"):  # Starlette awaits such a class
        return names
    if not any("__call__" in vars(base) for base in view.__mro__):
        message = (
            f"{unrouted[0].view} is a class without dispatch or __call__, so nothing is limited. Decorate a method"
        )
        raise ConfigError(message, of=unrouted[0].place)
    return ["__call__"]


def _undecided(view: object, args: Sequence[Any]) -> tuple[Decider | None, Sequence[Mark]]:
    """Return the marks to decide now, with the request that decides them. Those of its view are decided."""
    marks: ViewMarks = getattr(view, ATTRIBUTE)
    now = current.get()
    others = marks.every if now is None else [mark for mark in marks.every if mark not in now.marks]
    if not others or testmode.off:
        return None, ()
    if now is None and (now := _find_direct(args)) is None:
        raise MissingMiddlewareError(others[0].view)
    if not set(marks.messages).isdisjoint(others):
        hint = "check the decorators above @messages for functools.wraps"
        raise ConfigError(f"no route leads to it, so its messages cannot be limited: {hint}", of=others[0].view)
    return now, others
