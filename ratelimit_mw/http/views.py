"""The views of an application: their marks by method."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ..rules.marks import ViewMarks, marks_of, view_of
from ..rules.match import METHODS
from ..rules.names import class_behind

_DISPATCHERS: Final = ("dispatch_request", "dispatch")
"""The methods by which Flask and Django enter a class-based view, for any HTTP method."""


def handlers_of(view: object, method: str) -> list[object]:
    """Return the methods of a class-based view for a request, base classes first; none for a function."""
    cls = _class_of(view)
    if cls is None:
        return []
    actions = getattr(view, "actions", None) or {}  # of REST framework's view sets: {"get": "list"}
    name = method.lower()
    if name == "head" and not hasattr(cls, "head") and "head" not in actions:
        name = "get"
    return _in_all_bases(cls, actions.get(name, name))


class ViewMarksByMethod:
    """The limits and exemptions of one view, by the method of the request.

    A mark on a method of a class holds for every override in a subclass, which may call ``super()``.
    """

    def __init__(
        self,
        view: object,
        within: Iterable[object] = (),
        marks: Callable[[object], ViewMarks] = marks_of,
        handlers: Callable[[object, str], list[object]] = handlers_of,
    ) -> None:
        entries = [method for name in _DISPATCHERS for method in _in_all_bases(_class_of(view), name)]
        common = [marks(thing) for thing in (*within, view, *entries)]
        self.common = view_of(common)
        self.by_method = {
            method: view_of([*common, *map(marks, handling)])
            for method in METHODS
            if (handling := handlers(view, method))
        }

    def for_method(self, method: str) -> ViewMarks:
        return self.by_method.get(method, self.common)

    def all(self) -> Iterator[ViewMarks]:
        """Yield the marks of every possible request."""
        yield self.common
        yield from dict.fromkeys(self.by_method.values())


def _class_of(view: object) -> type | None:
    return view if inspect.isclass(view) else class_behind(view)


def _in_all_bases(cls: Any, name: str) -> list[object]:
    return [vars(base)[name] for base in reversed(getattr(cls, "__mro__", ())) if name in vars(base)]
