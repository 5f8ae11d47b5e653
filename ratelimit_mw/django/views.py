"""The marks on a view as Django's routes hold it: a function, a class, or an operation of Django Ninja."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from ..http.views import ViewMarksByMethod, handlers_of
from ..rules.marks import ViewMarks, marked_form
from ..rules.names import class_behind
from .decorators import own_marks

_UNMARKED: Final = ViewMarks()
_NO_METHOD: Final = "django.utils.decorators."


def marked_view(callback: Any) -> ViewMarksByMethod:
    """Return the limits and exemptions of the view of a route, by method."""
    _name_marks(callback)
    return ViewMarksByMethod(callback, marks=_marks_of, handlers=_handlers_of)


def scopes_of(callback: Any) -> Iterator[str]:
    """Yield the scopes of this package's throttles on a view of REST framework, as far as its class shows."""
    initkwargs = getattr(callback, "initkwargs", {})
    cls = class_behind(callback)
    for throttle in initkwargs.get("throttle_classes", getattr(cls, "throttle_classes", ())):
        if getattr(throttle, "decides_scope", False):
            scope = throttle.scope or initkwargs.get("throttle_scope", getattr(cls, "throttle_scope", None))
            yield from () if scope is None else (scope,)


def _handlers_of(view: object, method: str) -> list[object]:
    """Return the functions that handle a method: of a class-based view, or of Ninja's view of a path."""
    paths = [part for part in _parts_of(view) if _is_of_ninja(type(part)) and hasattr(part, "operations")]
    operations = [operation for path in paths for operation in path.operations if method in operation.methods]
    return [*handlers_of(view, method), *(marked_form(op.view_func) or op.view_func for op in operations)]


def _is_of_ninja(cls: type) -> bool:
    return any(base.__module__.startswith("ninja.") for base in cls.__mro__)


def _marks_of(thing: Any) -> ViewMarks:
    """Return the marks of an object, else those of the one marked function behind a decorator that hides them."""
    marks = own_marks(thing)
    if marks != _UNMARKED:
        return marks
    functions = [part for part in _parts_of(thing) if isinstance(part, FunctionType)]
    behind = [inner for inner in map(own_marks, functions) if inner != _UNMARKED]
    return behind[0] if len(behind) == 1 else marks


def _parts_of(function: Any) -> list[Any]:
    """Return the objects that a view may call: its instance, its wrapped function, its ``__call__``, its closure."""
    parts = [getattr(function, name, None) for name in ("__self__", "func")] + [type(function).__call__]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            parts.append(cell.cell_contents)
    return parts


def _name_marks(callback: Any) -> None:
    """Name the marks of ``method_decorator`` after the method: the decorator does not know it, the class does."""
    for base in getattr(class_behind(callback), "__mro__", ()):
        for name, method in vars(base).items():
            for mark in own_marks(method).marks if isinstance(method, FunctionType) else ():
                if mark.view.startswith(_NO_METHOD):
                    mark.view = f"{base.__module__}.{base.__qualname__}{'' if name == 'dispatch' else '.' + name}"
