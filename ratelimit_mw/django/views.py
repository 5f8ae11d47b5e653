"""What is marked on a view as Django's routes hold it: a function, a class behind one, or an operation of Ninja's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from ..http.views import ViewMarksByMethod, class_of, handlers_of
from ..rules.marks import ViewMarks, marked_form
from .decorators import marked_on

__all__ = ["UNMARKED", "marked_view", "scopes_of"]

UNMARKED: Final = ViewMarks()
_STOOD_ON_NOTHING: Final = "django.utils.decorators."


def marked_view(callback: Any) -> ViewMarksByMethod:
    """The limits and exemptions of what a route leads to, by method."""
    _name_marks(callback)
    return ViewMarksByMethod(callback, marks=_marks_of, handlers=_handlers_of)


def scopes_of(callback: Any) -> Iterator[str]:
    """The scopes that our throttles decide on a view of REST framework's, as far as its class says."""
    told = getattr(callback, "initkwargs", {})
    cls = class_of(callback)
    for throttle in told.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        if getattr(throttle, "decides_scope", False):
            scope = throttle.scope or told.get("throttle_scope", getattr(cls, "throttle_scope", None))
            yield from () if scope is None else (scope,)


def _handlers_of(view: object, method: str) -> list[object]:
    return [*handlers_of(view, method), *_operations_of(view, method)]


def _operations_of(view: object, method: str) -> list[object]:
    """The functions of Django Ninja behind its view of a path, which picks one by the method."""
    paths = [held for held in _held_by(view) if _is_of_ninja(type(held)) and hasattr(held, "operations")]
    operations = [op for path in paths for op in path.operations if method in op.methods]
    return [marked_form(op.view_func) or op.view_func for op in operations]


def _is_of_ninja(cls: type) -> bool:
    return any(base.__module__.startswith("ninja.") for base in cls.__mro__)


def _marks_of(thing: Any) -> ViewMarks:
    """What is marked on a thing; or on the one marked function that it calls, where a decorator hides that."""
    found = marked_on(thing)
    if found != UNMARKED:
        return found
    held = [held for held in _held_by(thing) if isinstance(held, FunctionType)]
    behind = [view for view in map(marked_on, held) if view != UNMARKED]
    return behind[0] if len(behind) == 1 else found


def _held_by(function: Any) -> list[Any]:
    """What a view calls: whose bound method it is, of what it is a part, how it is called, what its closure keeps."""
    held = [getattr(function, name, None) for name in ("__self__", "func")] + [type(function).__call__]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            held.append(cell.cell_contents)
    return held


def _name_marks(callback: Any) -> None:
    """``method_decorator`` does not say which method it decorates; the class on the route does."""
    for base in getattr(class_of(callback), "__mro__", ()):
        for name, method in vars(base).items():
            for mark in marked_on(method).marks if isinstance(method, FunctionType) else ():
                if mark.view.startswith(_STOOD_ON_NOTHING):
                    mark.view = f"{base.__module__}.{base.__qualname__}{'' if name == 'dispatch' else '.' + name}"
