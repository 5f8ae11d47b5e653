"""Check the rules against the routes of an application: path parameters, paths, views and methods."""

import difflib
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ..errors import ConfigError
from ..keys.parts import feature_of
from ..rules.describe import Route
from ..rules.marks import Mark
from ..rules.match import METHODS
from ..rules.overlap import overlap
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet

_FAMILY: Final = "path:"


def check_routes(routes: Collection[Route], rules: RuleSet) -> None:
    """Raise ``ConfigError`` for a rule of the settings whose path, view or method no route has."""
    for rule in rules.everywhere if routes else ():
        if not rule.source.unrouted:
            for field, problem in _unrouted(rule.source, routes):
                message = f"{problem}If this is on purpose, set unrouted = true in the rule"
                raise ConfigError(message, f"match.{field}", f"rule {rule.name!r}")


def _unrouted(rule: Rule, routes: Collection[Route]) -> Iterator[tuple[str, str]]:
    """Yield the fields of ``match`` that no route has, with the problem."""
    match = rule.matches
    for view in filter(None, match.views):
        named = [route for route in routes if route.name == view]
        yield from _problems("view", view, match.methods, named, [route.name for route in routes])
    for path in match.paths:
        on_path = [route for route in routes if overlap(path, route.pattern or route.template)]
        yield from _problems("path", path, match.methods, on_path, [route.template for route in routes])
    if match.methods and not match.paths and not match.views and not _with_methods(routes, match.methods):
        yield "methods", f"no route has the method {_either(match.methods)}. "


def _problems(
    field: str, value: str, methods: Collection[str], routes: Collection[Route], known: Iterable[str]
) -> Iterator[tuple[str, str]]:
    if not routes:
        close = difflib.get_close_matches(value, {name for name in known if name}, 1, 0.6)
        yield field, f"no route has the {field} {value!r}. {f'Did you mean {close[0]!r}? ' if close else ''}"
    elif methods and not _with_methods(routes, methods):
        has = _either({method for route in routes for method in route.views})
        yield "methods", f"the route of {value!r} has {has}, and not {_either(methods)}. "


def _with_methods(routes: Iterable[Route], methods: Collection[str]) -> bool:
    """Return whether a route has one of the methods. A route with all usual methods has the others, too.

    Frameworks respond to ``OPTIONS`` on every route.
    """
    if "OPTIONS" in methods:
        return True
    wanted = {*methods, "GET"} if "HEAD" in methods else methods
    return any(not route.views.keys().isdisjoint(wanted) or {*METHODS} <= route.views.keys() for route in routes)


def _either(names: Iterable[str]) -> str:
    return " or ".join(sorted(names))


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
        if rule.source.when_missing == "skip" and any(
            missing.issuperset(map(feature_of, entry)) for entry in rule.source.entries
        ):
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
