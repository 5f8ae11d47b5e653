"""Limits on FastAPI dependencies: those that apply on the way to the view, after the first decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..decision import Verdict
from ..errors import ConfigError, error_path
from ..http.limits import DECIDED
from ..keys.features import checked_name
from ..keys.parts import part_of
from ..rules.marks import Mark
from ..rules.rule import Rule

if TYPE_CHECKING:
    from .middleware import ASGIAdmission


class DependencyObject:
    """A dependency that is an object. Its class in its place would take arguments from the query of the client."""

    arguments = ""
    """Arguments of the class, for an example."""


class DependencyLimit(DependencyObject):
    """A limit that a dependency carries. Objects with the same mark are one limit.

    ``provides`` has the dependencies of features. Without any, the limit is decided before dependencies are called.
    """

    arguments = '"5/minute"'

    def __init__(self, mark: Mark, provides: Mapping[str, object], place: str) -> None:
        self.mark = mark
        self.provides = provides
        self.place = place


def check_provided(limit: DependencyLimit, rule: Rule) -> None:
    """Raise ``ConfigError`` for a feature of a limit that its rule does not use."""
    try:
        for name in limit.provides:
            with error_path(f"features[{name!r}]"):
                if checked_name(name) not in [part_of(each).feature for each in rule.parts]:
                    needs = ", ".join(rule.parts)
                    raise ConfigError(f"the limit does not use it: its key, match, per and cost need {needs}")
    except ConfigError as error:
        raise ConfigError(error.message, error.path, limit.place) from None


class DependencyDecisions:
    """Decides the dependency limits of one request. Its admission keeps it for them."""

    def __init__(self, admission: ASGIAdmission) -> None:
        self._admission = admission
        self._first = admission.verdict
        self._decided: dict[Mark, Verdict] = {}

    async def decide(self, limit: DependencyLimit, provided: Mapping[str, Any]) -> Verdict:
        """Return the verdict on a limit, which is decided once.

        Raises ``RateLimitExceeded`` when it rejects. Everything that the request has consumed stays consumed.
        """
        request = self._admission.request
        marks = request.match.marks
        if marks is not None and not limit.provides and limit.mark in marks.marks:
            return self._first
        if limit.mark not in self._decided:  # FastAPI calls a dependency again with use_cache=False
            admission = self._admission
            plan = admission.limits.rules.plan_of([limit.mark], request.method, request.host, marks, admission.lists)
            self._decided[limit.mark] = await admission.acheck(plan, provided)
        return self._decided[limit.mark]


def decisions_of(scope: Mapping[str, Any], limit: DependencyLimit) -> DependencyDecisions | None:
    """Return the decisions of a request; None where no middleware that knows the limit handles it."""
    for admission in reversed(scope.get(DECIDED, {}).values()):
        if limit.mark in admission.limits.rules.marks:
            admission.dependencies = admission.dependencies or DependencyDecisions(admission)
            return admission.dependencies  # type: ignore[no-any-return]
    return None
