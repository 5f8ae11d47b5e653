"""What is marked on the way to a view: on what it stands in, on itself, on its class, on the method that answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ..rules.marks import ViewMarks, marks_of, view_of
from ..rules.rule import METHODS

__all__ = ["ViewMarksByMethod", "class_of", "handlers_of"]

_ENTRIES: Final = ("dispatch_request", "dispatch")
"""The methods that Flask's and Django's class-based views are entered by, whatever the request's method."""

MarksOf = Callable[[object], ViewMarks]
HandlersOf = Callable[[object, str], list[object]]


def handlers_of(view: object, method: str) -> list[object]:
    """The methods of a class-based view that answer a request, those of base classes first; none of a function."""
    cls = class_of(view)
    if cls is None:
        return []
    actions = getattr(view, "actions", None) or {}  # of REST framework's view sets: {"get": "list"}
    name = method.lower()
    if name == "head" and not hasattr(cls, "head") and "head" not in actions:
        name = "get"
    return _in_all_bases(cls, actions.get(name, name))


class ViewMarksByMethod:
    """The limits and exemptions that a request meets at one view, by the request's method.

    ``within`` is what the view stands in, such as blueprints, the outermost first. A mark on a method of a class holds
    in its subclasses, those that override it included: a limit must not vanish because somebody calls ``super()``.
    """

    def __init__(
        self,
        view: object,
        within: Iterable[object] = (),
        marks: MarksOf = marks_of,
        handlers: HandlersOf = handlers_of,
    ) -> None:
        entries = [method for name in _ENTRIES for method in _in_all_bases(class_of(view), name)]
        common = [marks(thing) for thing in (*within, view, *entries)]
        self._common = view_of(common)
        self._by_method = {
            method: view_of([*common, *map(marks, answering)])
            for method in METHODS
            if (answering := handlers(view, method))
        }

    def of(self, method: str) -> ViewMarks:
        """What is marked for requests of this method."""
        return self._by_method.get(method, self._common)

    def all(self) -> Iterator[ViewMarks]:
        """Everything that some request may meet."""
        yield self._common
        yield from dict.fromkeys(self._by_method.values())


def class_of(view: object) -> Any:
    """The class behind a function that a framework made of a class; None where there is none."""
    return getattr(view, "view_class", None) or getattr(view, "cls", None)


def _in_all_bases(cls: Any, name: str) -> list[object]:
    return [vars(base)[name] for base in reversed(getattr(cls, "__mro__", ())) if name in vars(base)]
