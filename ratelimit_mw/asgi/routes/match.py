"""The route of a request as limits see it. Knows no framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ...keys.features import UNMATCHED
from ...rules.marks import Mark, ViewMarks

if TYPE_CHECKING:
    from ..dependencies import DependencyLimit

OPAQUE: Final = object()
"""The target of a route whose application cannot be read."""


@dataclass(frozen=True, eq=False, slots=True)
class RouteMatch:
    """The route of a request.

    Args:
        endpoint: The whole template of the route.
        target: The framework's endpoint.
        passed: The applications mounted on the way to it.
        marks: The marks of the view; None without any.
        has_dependencies: Whether dependencies carry limits.
        deferred: The marks that are decided only when their dependencies have run.
    """

    endpoint: str | None
    target: object = None
    passed: tuple[object, ...] = ()
    marks: ViewMarks | None = None
    has_dependencies: bool = False
    deferred: tuple[Mark, ...] = ()

    def with_marks(self, marks: ViewMarks | None, limits: list[DependencyLimit]) -> RouteMatch:
        deferred = tuple(dict.fromkeys(limit.mark for limit in limits if limit.provides))
        return replace(self, marks=marks, has_dependencies=bool(limits), deferred=deferred)

    def leads_to(self, endpoint: object) -> bool:
        """Return whether the framework chose this route too. ``endpoint`` is None where it has chosen none."""
        known = endpoint is None or endpoint is self.target or self.target is OPAQUE
        return known or any(endpoint is app for app in self.passed)


NO_ROUTE: Final = RouteMatch(UNMATCHED)
"""The match of a request that no route matches."""
ROUTES_UNKNOWN: Final = RouteMatch(None)
"""The match where the routes of the application are not known."""
