"""The routes of an application: the marks of their views by method, and rules that no route fits."""

import dataclasses
import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

from ..errors import ConfigError
from ..keys.features import UNMATCHED
from ..rules.compiled import CompiledRule
from ..rules.marks import Destination, Mark, ViewMarks, marked_form, marks_of, merge_marks
from ..rules.match import METHODS
from ..rules.names import ascii_name, class_behind, owners_of, views_behind
from ..rules.paths import overlap
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet

_PARAMETER: Final = "path:"
_DISPATCHERS: Final = ("dispatch_request", "dispatch")
"""The methods by which Flask and Django enter a class-based view, for any HTTP method."""


def marks_by_method(
    view: object, within: Iterable[object] = (), marks: Callable[[object], ViewMarks] = marks_of
) -> dict[str, ViewMarks]:
    """Return the limits and exemptions of one view, by the method of the request; by "" those for all other methods.

    A mark on a method of a class holds for every override in a subclass, which may call ``super()``. A view may also be
    a method of an object, whose class then has marks for all its views.
    """
    cls = view if inspect.isclass(view) else class_behind(view)
    entries = [method for name in _DISPATCHERS for method in _in_all_bases(cls, name)]
    outer = [thing for each in (*within, view) for thing in (*owners_of(each), each)]
    common = [marks(thing) for thing in (*outer, *entries)]
    handlers = {method: _handlers_of(view, cls, method) for method in METHODS}
    by_method = {method: merge_marks([*common, *map(marks, each)]) for method, each in handlers.items() if each}
    return {"": merge_marks(common), **by_method}


def _in_all_bases(cls: Any, name: str) -> list[object]:
    return [vars(base)[name] for base in reversed(getattr(cls, "__mro__", ())) if name in vars(base)]


def _handlers_of(view: object, cls: type | None, method: str) -> list[object]:
    """Return the methods of a class-based view for a request, base classes first."""
    actions = getattr(view, "actions", None)  # of REST framework's view sets: {"get": "list"}
    actions = actions if isinstance(actions, Mapping) else {}  # any view may have such an attribute
    name = method.lower()
    if name == "head" and not hasattr(cls, "head") and "head" not in actions:
        name = "get"
    return _in_all_bases(cls, actions.get(name, name))


@dataclass(eq=False)
class Route:
    """One route of an application. A framework adds to its class what only this framework has."""

    to: Destination
    """Where its requests go, without the marks of the view."""
    marked: Mapping[str, ViewMarks] = dataclasses.field(default_factory=lambda: {"": ViewMarks()})
    """The marks of the view: see ``marks_by_method``."""
    methods: Collection[str] = METHODS
    parameters: Collection[str] | None = ()
    """The names of the parameters in its path; None where functions of the application may add others."""
    pattern: str = ""
    """A pattern that matches at least its paths, where the template does not."""
    target: Any = None
    """The view, or the application that has no routes to read."""
    answers_options: bool = False
    """As in ``ViewMarks``."""
    destinations: dict[str | None, Destination] = dataclasses.field(init=False, default_factory=dict)
    """The results of ``destination`` so far."""

    @property
    def endpoint(self) -> str:
        """The template of its paths."""
        return str(self.to.endpoint)

    def marks_for(self, method: str | None) -> ViewMarks:
        """Return the marks for a request with this method; with None, for one whose method the route does not take."""
        marks = ViewMarks() if method is None else self.marked.get(method, self.marked[""])
        is_answered = self.answers_options and method in (None, "OPTIONS")
        return replace(marks, answers_options=True) if is_answered else marks

    def destination(self, method: str | None) -> Destination:
        """Return where a request goes. The method is None where the route does not take it."""
        key = method if method is None or method in METHODS else ""  # clients choose others
        to = self.destinations.get(key)
        if to is None:
            marks = self.marks_for(method)
            to = self.destinations[key] = replace(self.to, marks=None if marks == ViewMarks() else marks)
        return to

    @cached_property
    def views(self) -> Mapping[str, ViewMarks]:
        """The marks of the view by method."""
        return {method: self.marks_for(method) for method in self.methods}

    def describe(self, methods: Collection[str]) -> str:
        """Return the route in words, with its methods when they are not all."""
        return self.endpoint if len(methods) == len(self.views) else f"{'/'.join(methods)} {self.endpoint}"

    def takes(self, methods: Collection[str]) -> bool:
        """Return whether the route has one of the methods of a rule. One with all usual methods has the others, too."""
        if not methods or "OPTIONS" in methods:  # frameworks respond to ``OPTIONS`` on every route
            return True
        wanted, taken = {*methods, "GET"} if "HEAD" in methods else methods, self.views.keys()
        return not taken.isdisjoint(wanted) or {*METHODS} <= taken

    def missing_parameters(self, rule: Rule) -> set[str]:
        """Return the path parameters that a rule needs, and that requests to this route do not have."""
        if self.parameters is None:
            return set()
        needed = {name for name in rule.needs if name.startswith(_PARAMETER)} - rule.captures.names
        return needed - {_PARAMETER + name for name in self.parameters}

    def lacks_parameter(self, rule: Rule) -> bool:
        """Return whether a rule skips all requests to this route, because they have no such path parameter."""
        missing = self.missing_parameters(rule)
        needed = list(rule.entries if rule.when_missing == "skip" else ())
        needed += [(part,) for part, _ in rule.matches.features]
        return any(missing.issuperset(part.feature for part in parts) for parts in needed)


_FITS: Final[Mapping[str, tuple[Callable[[str, Route], bool], Callable[[Route], str]]]] = {
    "view": (lambda view, route: route.to.view == view, attrgetter("to.view")),
    "path": (lambda path, route: overlap(path, route.pattern or route.endpoint), attrgetter("endpoint")),
    "endpoint": (lambda endpoint, route: endpoint in (route.endpoint, UNMATCHED), attrgetter("endpoint")),
}
"""For each field of ``match``: whether a value fits a route, and the value that a route has."""
_VALUES: Final[Mapping[str, Callable[[Route], str]]] = {
    "view": attrgetter("to.function"),
    "endpoint": attrgetter("endpoint"),
}
"""The features whose values are those of routes."""
_SIMILAR: Final = 0.5
_NO_VIEWS: Final = "the views of this application have no names"
_NO_ROUTES: Final = "the routes of this application are not known"


def check_routes(routes: Collection[Route], rules: RuleSet, provided: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` for a rule that no route fits: for its path, view, endpoint, method or path parameters.

    Args:
        routes: All routes of the application.
        rules: The rules.
        provided: The features that functions of the application may return. They may have any value.
    """
    for entry in rules.own_lists.entries if routes else ():
        for _, problem in _unknown_values(entry.part, entry.values, routes, provided):
            raise ConfigError(f"{problem}Write the {entry.part} of a route", f"lists.{entry.kind}.{entry.part}")
    for rule in rules.rules if routes else ():
        if rule.source.unrouted:
            continue
        if rule in rules.everywhere:
            _check_match(rule, routes)
        for by, table in rule.source.tables:
            for value, problem in _unknown_values(by or "|".join(rule.source.entries[0]), table, routes, provided):
                raise _unrouted(rule, f"per.{by}[{value!r}]" if by else f"per_key[{value!r}]", problem)


def _unrouted(rule: CompiledRule, path: str, problem: str) -> ConfigError:
    return rule.error(f"{problem}If this is on purpose, set unrouted = true in the rule", path)


def _unknown_values(
    feature: str, values: Iterable[Any], routes: Collection[Route], provided: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the values of ``view`` or ``endpoint`` that no route has, with the problem."""
    if feature in _VALUES and feature not in provided:
        known = [UNMATCHED, *map(_VALUES[feature], routes)]
        for value in sorted(map(str, values)):
            if value not in known:
                yield value, _no_route(feature, value, known)


def _check_match(rule: CompiledRule, routes: Collection[Route]) -> None:
    """Raise ``ConfigError`` for a value of ``match`` that no route has, and for a rule that never applies."""
    match, fitting = rule.source.matches, list(routes)
    endpoints = sorted(match.values_of("endpoint"))
    given = {"view": list(filter(None, match.views)), "path": match.paths, "endpoint": endpoints}
    fields = {field: values for field, values in given.items() if values}
    for field, values in fields.items():
        fits, name = _FITS[field]
        for value in values:
            on_value = [route for route in routes if fits(value, route)]
            if not on_value:
                raise _unrouted(rule, f"match.{field}", _no_route(field, value, map(name, routes)))
            if not any(route.takes(match.methods) for route in on_value):
                has = _either({method for route in on_value for method in route.views})
                problem = f"the route of {value!r} has {has}, and not {_either(match.methods)}. "
                raise _unrouted(rule, "match.methods", problem)
        fitting = [route for route in fitting if any(fits(value, route) for value in values)]
    fitting = [route for route in fitting if route.takes(match.methods)]
    if not fitting:
        wanted = [f"{field} {' or '.join(map(repr, values))}" for field, values in fields.items()]
        problem = f"no route has the {' and the '.join(wanted or [f'method {_either(match.methods)}'])}. "
        raise _unrouted(rule, f"match.{[*fields, 'methods'][len(fields) - 1]}", problem)
    if all(route.lacks_parameter(rule.source) for route in fitting):
        where = "no route" if len(fitting) == len(routes) else "no route that the rule matches"
        missing = [route.missing_parameters(rule.source) for route in fitting]
        names = _quote_names(set.intersection(*missing) or set.union(*missing))
        raise rule.error(f"the rule never applies: {where} has the parameter {names}", "key")


def _no_route(field: str, value: str, known: Iterable[str]) -> str:
    names = dict.fromkeys(filter(None, known))
    close = " or ".join(map(repr, difflib.get_close_matches(value, names, 3, _SIMILAR)))
    return f"no route has the {field} {value!r}. {f'Did you mean {close}? ' if close else ''}"


def _either(names: Iterable[str]) -> str:
    return " or ".join(sorted(names))


def check_marks(routes: Iterable[Route], rules: RuleSet) -> None:
    """Raise ``ConfigError`` for a limit of a decorator by a path parameter that none of its routes has."""
    for mark, marked in _routes_by_mark(routes).items():
        source = rules.rule_of(mark).source
        if missing := set.intersection(*(route.missing_parameters(source) for route in marked)):
            paths = ", ".join(dict.fromkeys(route.endpoint for route in marked))
            raise ConfigError(f"{paths} has no parameter {_quote_names(missing)}", "key", f"the limit on {mark.view}")


def check_no_views(rules: RuleSet, provided: Collection[str] = ()) -> None:
    """Raise ``ConfigError`` for a rule or a list that needs a view or an endpoint, where the routes are not known."""
    if "view" in rules.own_lists.needs and "view" not in provided:
        raise ConfigError(f"{_NO_VIEWS}. Write path, or use the framework's middleware", "lists")
    if "endpoint" in rules.own_lists.needs and "endpoint" not in provided:
        raise ConfigError(f"{_NO_ROUTES}. Write path", "lists")
    for rule in rules.rules:
        source = rule.source
        is_counted = "view" in source.needs and "view" not in provided and not source.matches.is_only_named
        if is_counted or (any(source.matches.views) and not source.unrouted):
            path, other = ("key", 'the feature "path"') if is_counted else ("match.view", "match.path")
            raise rule.error(f"{_NO_VIEWS}. Write {other}, or use the framework's middleware", path)
        if "endpoint" in dict(source.matches.features) and "endpoint" not in provided and not source.unrouted:
            raise rule.error(f"{_NO_ROUTES}. Write match.path", "match.endpoint")


def registered_forms(views: Iterable[Any]) -> set[int]:
    """Return the identities of the views of all routes. Inside decorators, only an exemption is for its route alone."""
    return {
        id(getattr(layer, "__func__", layer))
        for view in views
        for layer in views_behind(view)
        if layer is view or marks_of(layer).exempt is not None
    }


def marked_view(view: Any, registered: Collection[int]) -> Any:
    """Return a view, or its marked form where a decorator is above the one that registered the view.

    A marked form that is ``registered`` for a route of its own keeps its marks: then this route is left unlimited on
    purpose. Extensions of Flask register a function around a view.
    """
    form = next(filter(None, map(marked_form, views_behind(view))), None)
    is_late = form is not None and marks_of(view) == ViewMarks() and id(form) not in registered
    return form if is_late else view


class ViewNames:
    """Names each view for keys: by the first of its routes, "items", and "items#2" for another view of that name."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[object, str]] = {}
        self._counts: Counter[str] = Counter()

    def name(self, view: object, name: str) -> str:
        """Return the name of a function or a class, whose next route may have this ``name``."""
        if id(view) not in self._names:
            name = ascii_name(name)
            self._counts[name] += 1
            self._names[id(view)] = view, name if self._counts[name] == 1 else f"{name}#{self._counts[name]}"
        return self._names[id(view)][1]


def _routes_by_mark(routes: Iterable[Route]) -> dict[Mark, list[Route]]:
    by_mark: dict[Mark, list[Route]] = {}
    for route in routes:
        for mark in dict.fromkeys(mark for view in route.views.values() for mark in view.all_marks):
            by_mark.setdefault(mark, []).append(route)
    return by_mark


def _quote_names(parameters: Iterable[str]) -> str:
    return ", ".join(repr(name.removeprefix(_PARAMETER)) for name in sorted(parameters))
