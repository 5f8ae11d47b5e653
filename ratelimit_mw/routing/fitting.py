"""Whether limits fit the routes that they look at: one by a parameter that no route has would never apply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import ConfigError
from ..marks import Mark
from ..rules import Rule
from ..ruleset import RuleSet
from .levels import Branch
from .marking import Marking

__all__ = ["check_limits"]

_FAMILY: Final = "path:"


def check_limits(marking: Marking, rules: RuleSet) -> None:
    """``ConfigError`` for a marked limit by a parameter that none of its routes has; for a rule that has no other."""
    for mark, branches in _places(marking).items():
        if unknown := _unknown(rules.of(mark).rule, branches):
            paths = ", ".join(dict.fromkeys(branch.endpoint for branch in branches))
            raise ConfigError(f"{paths} has no parameter {_told(unknown)}", "key", f"the limit on {mark.view}")
    for compiled in rules.everywhere if marking.branches else ():
        unknown = _unknown(compiled.rule, marking.branches)
        if compiled.rule.when_unknown == "skip" and any(unknown.issuperset(entry) for entry in compiled.rule.entries):
            message = f"it never applies: no route has the parameter {_told(unknown)}"
            raise ConfigError(message, "key", f"rule {compiled.name!r}")


def _places(marking: Marking) -> dict[Mark, list[Branch]]:
    """The routes that marks stand on."""
    found: dict[Mark, list[Branch]] = {}
    for branch in marking.branches:
        views = [view for view in branch.views.values() if view is not None]
        marks = [mark for view in views for mark in (*view.marks, *view.messages)]
        for mark in dict.fromkeys((*marks, *(limit.mark for limit in branch.met))):
            found.setdefault(mark, []).append(branch)
    return found


def _unknown(rule: Rule, branches: Iterable[Branch]) -> set[str]:
    """The parameters that a rule looks at and that no route has."""
    known = {_FAMILY + name for branch in branches for name in branch.parameters}
    return {name for name in rule.needs if name.startswith(_FAMILY)} - known


def _told(unknown: set[str]) -> str:
    return ", ".join(repr(name.removeprefix(_FAMILY)) for name in sorted(unknown))
