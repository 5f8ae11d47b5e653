"""The routes of an application of Starlette's or FastAPI's as places that limits have to fit."""

from __future__ import annotations

from ...http.route_checks import RouteInfo, check_parameters, marks_in
from ...rules.ruleset import RuleSet
from .marks import Marking
from .tree import RouteNode

__all__ = ["check_limits"]


def check_limits(marking: Marking, rules: RuleSet) -> None:
    """``ConfigError`` for a limit by a parameter that no route has."""
    check_parameters([_place(branch) for branch in marking.branches], rules)


def _place(branch: RouteNode) -> RouteInfo:
    marks = marks_in(view for view in branch.views.values() if view is not None)
    return RouteInfo(branch.endpoint, branch.parameters, (*marks, *(limit.mark for limit in branch.met)))
