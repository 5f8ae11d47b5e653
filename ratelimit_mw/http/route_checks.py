"""Checks that routes have the path parameters that limits count by: otherwise a limit never applies."""

from collections.abc import Collection, Iterable
from typing import Final

from ..errors import ConfigError
from ..rules.describe import Route
from ..rules.marks import Mark
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet

_FAMILY: Final = "path:"


def check_parameters(routes: Collection[Route], rules: RuleSet, complete: bool = True) -> None:
    """Raise ``ConfigError`` for a limit by a path parameter that none of its routes has.

    Rules of the settings are checked only where ``routes`` are all routes.
    """
    for mark, marked in _routes_by_mark(routes).items():
        if missing := _missing_parameters(rules.rule_of(mark).source, marked):
            paths = ", ".join(dict.fromkeys(route.template for route in marked))
            raise ConfigError(f"{paths} has no parameter {_quoted(missing)}", "key", f"the limit on {mark.view}")
    for rule in rules.everywhere if routes and complete else ():
        missing = _missing_parameters(rule.source, routes)
        if rule.source.when_missing == "skip" and any(missing.issuperset(entry) for entry in rule.source.entries):
            message = f"the rule never applies: no route has the parameter {_quoted(missing)}"
            raise ConfigError(message, "key", f"rule {rule.name!r}")


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


def _quoted(parameters: Iterable[str]) -> str:
    return ", ".join(repr(name.removeprefix(_FAMILY)) for name in sorted(parameters))
