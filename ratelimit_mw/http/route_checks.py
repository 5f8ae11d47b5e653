"""Whether limits fit the routes that they look at: one by a parameter that no route has would never apply."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigError
from ..rules.marks import Mark, ViewMarks
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet

__all__ = ["RouteInfo", "check_parameters", "marks_in"]

_FAMILY: Final = "path:"


@dataclass(frozen=True)
class RouteInfo:
    """One route, the names of its parameters, and all that is marked on the way to its view."""

    endpoint: str
    parameters: Collection[str]
    marks: Collection[Mark]


def marks_in(views: Iterable[ViewMarks]) -> tuple[Mark, ...]:
    """All marks of the views that a route may lead to, each once."""
    return tuple(dict.fromkeys(mark for view in views for mark in (*view.marks, *view.messages)))


def check_parameters(places: Collection[RouteInfo], rules: RuleSet, alone: bool = True) -> None:
    """``ConfigError`` for a marked limit by a parameter that none of its routes has; for a rule that has no other.

    ``alone``: there are no more routes than these.
    """
    for mark, there in _places_of_marks(places).items():
        if unknown := _unknown(rules.of(mark).source, there):
            paths = ", ".join(dict.fromkeys(place.endpoint for place in there))
            raise ConfigError(f"{paths} has no parameter {_told(unknown)}", "key", f"the limit on {mark.view}")
    for compiled in rules.everywhere if places and alone else ():
        unknown = _unknown(compiled.source, places)
        if compiled.source.when_missing == "skip" and any(
            unknown.issuperset(entry) for entry in compiled.source.entries
        ):
            message = f"it never applies: no route has the parameter {_told(unknown)}"
            raise ConfigError(message, "key", f"rule {compiled.name!r}")


def _places_of_marks(places: Iterable[RouteInfo]) -> dict[Mark, list[RouteInfo]]:
    found: dict[Mark, list[RouteInfo]] = {}
    for place in places:
        for mark in place.marks:
            found.setdefault(mark, []).append(place)
    return found


def _unknown(rule: Rule, places: Iterable[RouteInfo]) -> set[str]:
    """The parameters that a rule looks at and that no route has."""
    needed = {name for name in rule.needs if name.startswith(_FAMILY)}
    return needed - {_FAMILY + name for place in places for name in place.parameters} if needed else needed


def _told(unknown: Iterable[str]) -> str:
    return ", ".join(repr(name.removeprefix(_FAMILY)) for name in sorted(unknown))
