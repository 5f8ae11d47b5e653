"""The routes of one URLconf: which view answers a request, and what it is marked with. Read once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from django.urls import URLResolver

from ..http.marked import MarkedView, class_of, handlers_of
from ..marks import View, marked_form
from .decorators import marked_on
from .template import template_of

__all__ = ["UNMARKED", "Routes", "routes_of"]

UNMARKED: Final = View()
_STOOD_ON_NOTHING: Final = "django.utils.decorators."


class Routes:
    """What is marked on the views of a URLconf, found by the view that Django resolves a path to."""

    def __init__(self, resolver: Any) -> None:
        self.patterns = list(routes_of(resolver))
        self._found = {id(callback): _marked_view(callback) for _, callback in self.patterns}
        self.marked = any(view != UNMARKED for view in self.views())

    def views(self) -> Iterator[View]:
        """Everything that some request may meet."""
        for found in self._found.values():
            yield from found.all()

    def of(self, callback: object) -> MarkedView | None:
        return self._found.get(id(callback))

    def view(self, callback: object, method: str) -> View:
        """What a request meets there."""
        found = self.of(callback)
        return UNMARKED if found is None else found.of(method)


def routes_of(resolver: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every route of a URLconf as its template, with the view that answers there."""
    for pattern in resolver.url_patterns:
        route = before + str(pattern.pattern).removeprefix("^" if before else "")
        if isinstance(pattern, URLResolver):
            yield from routes_of(pattern, route)
        else:
            yield template_of(route), pattern.callback


def _marked_view(callback: Any) -> MarkedView:
    _name_marks(callback)
    return MarkedView(callback, marks=_marks_of, handlers=_handlers_of)


def _handlers_of(view: object, method: str) -> list[object]:
    return [*handlers_of(view, method), *_operations_of(view, method)]


def _operations_of(view: object, method: str) -> list[object]:
    """The functions of Django Ninja behind its view of a path, which picks one by the method."""
    paths = [held for held in _held_by(view) if type(held).__module__.startswith("ninja.")]
    operations = [op for path in paths for op in path.operations if method in op.methods]
    return [marked_form(op.view_func) or op.view_func for op in operations]


def _marks_of(thing: Any) -> View:
    """What is marked on a thing; or on the one marked function that it calls, where a decorator hides that."""
    found = marked_on(thing)
    if found != UNMARKED:
        return found
    held = [held for held in _held_by(thing) if isinstance(held, FunctionType)]
    behind = [view for view in map(marked_on, held) if view != UNMARKED]
    return behind[0] if len(behind) == 1 else found


def _held_by(function: Any) -> list[Any]:
    """What a function that was made by another one keeps of it."""
    held = []
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
