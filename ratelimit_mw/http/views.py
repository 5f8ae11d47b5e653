"""The views of an application: their marks by method, and a check of the path parameters that their limits need."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from ..errors import ConfigError
from ..rules.describe import Route
from ..rules.marks import Mark, ViewMarks, marks_of, view_of
from ..rules.match import METHODS
from ..rules.names import class_behind
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet

_DISPATCHERS: Final = ("dispatch_request", "dispatch")
"""The methods by which Flask and Django enter a class-based view, for any HTTP method."""
_FAMILY: Final = "path:"


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


def check_parameters(routes: Collection[Route], rules: RuleSet, complete: bool = True) -> None:
    """Raise ``ConfigError`` for a limit by a path parameter that none of its routes has.

    Rules of the settings are checked only where ``routes`` are all routes.
    """
    for mark, marked in _routes_by_mark(routes).items():
        if missing := _missing_parameters(rules.rule_of(mark).source, marked):
            paths = ", ".join(dict.fromkeys(route.template for route in marked))
            raise ConfigError(f"{paths} has no parameter {_quote_names(missing)}", "key", f"the limit on {mark.view}")
    for rule in rules.everywhere if routes and complete else ():
        missing = _missing_parameters(rule.source, routes)
        if rule.source.when_missing == "skip" and any(missing.issuperset(entry) for entry in rule.source.entries):
            message = f"the rule never applies: no route has the parameter {_quote_names(missing)}"
            raise ConfigError(message, "key", f"rule {rule.name!r}")


def check_no_views(rules: RuleSet) -> None:
    """Raise ``ConfigError`` for a rule that names a view, where the application's routes are not known."""
    for rule in rules.rules:
        if any(rule.source.matches.views):
            message = "the views of this application have no names. Write match.path, or use the framework's middleware"
            raise ConfigError(message, "match.view", f"rule {rule.name!r}")


def _routes_by_mark(routes: Iterable[Route]) -> dict[Mark, list[Route]]:
    by_mark: dict[Mark, list[Route]] = {}
    for route in routes:
        for mark in dict.fromkeys(mark for view in route.views.values() for mark in view.every):
            by_mark.setdefault(mark, []).append(route)
    return by_mark


def _missing_parameters(rule: Rule, routes: Iterable[Route]) -> set[str]:
    """Return the path parameters that a rule needs and that no route has."""
    needed = {name for name in rule.needs if name.startswith(_FAMILY)}
    return needed - {_FAMILY + name for route in routes for name in route.parameters} if needed else needed


def _quote_names(parameters: Iterable[str]) -> str:
    return ", ".join(repr(name.removeprefix(_FAMILY)) for name in sorted(parameters))
