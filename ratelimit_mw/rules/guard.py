"""The guard of marked views: a marked view raises an error in a request in which no middleware decided its limits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar

from ..errors import MissingMiddlewareError
from ..testmode import testmode
from .marks import ATTRIBUTE, MARKED_FORM, Mark, ViewMarks
from .names import holds_views

_DISPATCHERS: Final = ("dispatch", "dispatch_request")
"""The methods by which Starlette and Django, and Flask, enter a class-based view."""
_decided: ContextVar[frozenset[Mark]] = ContextVar("ratelimit_mw.decided", default=frozenset())


class HoldsViews(Protocol):
    """A blueprint or an application of Flask. A mark on it is for all its views."""

    import_name: str


AnyView = TypeVar("AnyView", bound=Callable[..., Any] | HoldsViews)


def mark_decided(view: ViewMarks) -> frozenset[Mark]:
    """Note that the limits marked on ``view`` are decided in this request. Returns the value to restore."""
    before = _decided.get()
    _decided.set(before.union(view.every))
    return before


def restore_decided(before: frozenset[Mark]) -> None:
    """Undo ``mark_decided`` at the end of a request, for adapters whose threads serve many requests."""
    _decided.set(before)


def require_decided(marks: Iterable[Mark]) -> None:
    """Raise ``MissingMiddlewareError`` unless one of the marks is decided, for decorators that mark several views."""
    marks = tuple(marks)
    if _decided.get().isdisjoint(marks) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view)


def mark_view(view: AnyView, marks: ViewMarks) -> AnyView:
    """Put marks on a view, and put the guard around the view when it has none."""
    guarded: Any = view
    if inspect.isclass(view):
        _guard_dispatcher(view)
    elif not holds_views(view) and not hasattr(view, ATTRIBUTE):
        guarded = _guard(view)
        for function in _wrapped_by(guarded):
            setattr(function, MARKED_FORM, guarded)
    setattr(guarded, ATTRIBUTE, marks)
    return guarded  # type: ignore[no-any-return]


def _wrapped_by(view: object) -> Iterator[FunctionType]:
    """The functions that a decorated function was made from, the outermost first."""
    while isinstance(view := getattr(view, "__wrapped__", None), FunctionType):
        yield view


def _guard(view: Any, marked_on: Callable[..., object] | None = None) -> Any:
    """Put the guard around a view. Signature, name, kind and globals stay the same.

    ``marked_on`` finds the marked object from the arguments, when it is not the function itself.
    """
    guarded: Any

    def check(args: tuple[Any, ...]) -> None:
        _check(marked_on(*args) if marked_on else guarded)

    if inspect.iscoroutinefunction(view):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            check(args)
            return await view(*args, **kwargs)

        guarded = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            check(args)
            return view(*args, **kwargs)

        guarded = call
    # FastAPI evaluates annotations that are text with the globals of the function that has them.
    if isinstance(view, FunctionType):
        guarded = FunctionType(guarded.__code__, view.__globals__, None, None, guarded.__closure__)
    return functools.wraps(view)(guarded)


def _guard_dispatcher(view: type) -> None:
    """Put the guard around the methods that enter a class-based view."""
    for name in _DISPATCHERS if ATTRIBUTE not in vars(view) else ():
        if (dispatch := getattr(view, name, None)) is not None:
            setattr(view, name, _guard(dispatch, lambda self, *_: type(self)))


def _check(view: object) -> None:
    marks: tuple[Mark, ...] = getattr(view, ATTRIBUTE).every
    if not _decided.get().issuperset(marks) and not testmode.off:
        raise MissingMiddlewareError(marks[0].view)
