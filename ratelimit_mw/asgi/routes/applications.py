"""Finds the application that a request belongs to, and has the guard adopt what its routes are marked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...http.limiter import HttpLimiter
from ..error_handlers import answer_of, handles
from ..openapi import OpenAPIWithLimits
from .fitting import check_limits
from .index import RouteIndex
from .reader import RouteReader, application_behind
from .tree import FULL, RouteNode

__all__ = ["RouteIndexes"]


class RouteIndexes:
    """The applications that a middleware serves, nearly always one, and the indexes of their routes.

    A middleware inside an application that is mounted in others is told their router, too: templates are whole there.
    ``adopted`` is called when there is something new.
    """

    def __init__(self, guard: HttpLimiter, inner: object, adopted: Callable[[], None]) -> None:
        self._guard = guard
        self._inner = inner
        self._adopted = adopted
        self._known: dict[int, tuple[object, RouteIndex | None]] = {}

    def index_of(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        """The index for a scope; None when nobody there has routes. ``ConfigError`` for marks that cannot work."""
        start = _first(_around(scope), scope.get("app"), self._inner)
        known = self._known.get(id(start))
        if known is None:
            known = self._known[id(start)] = (start, self._opened(scope))
        index = known[1]
        if index is not None:
            index.refresh()
        return index

    def _opened(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        outermost = application_behind(_around(scope))
        app = _first(application_behind(scope.get("app")), application_behind(self._inner))
        if outermost is not None:
            index = RouteIndex(outermost, True, self._adopt, answer_of(app))
            if app is None or index.reading.reaches(app):
                return index
        if app is not None:
            return RouteIndex(app, outermost is None, self._adopt, answer_of(app))
        self._guard.adopt_no_routes()
        self._adopted()
        return None

    def _adopt(self, reading: RouteReader) -> None:
        self._guard.adopt(reading.marking.views, reading.marking.later)
        check_limits(reading.marking, self._guard.rules)
        self._adopted()
        self._describe(reading)

    def _describe(self, reading: RouteReader) -> None:
        """Have the OpenAPI descriptions of FastAPI applications tell the limits."""
        limited = frozenset(
            (branch.endpoint, method)
            for branch in reading.marking.branches
            for method in branch.methods or ()
            if self._is_limited(branch, method)
        )
        for app in {id(owner): owner for _, owner in reading.owners if hasattr(owner, "openapi_schema")}.values():
            prefixes = [prefix for prefix, owner in reading.owners if owner is app]
            own_body = self._guard.reject is None and not handles(app, 429)
            names = [name.decode("ascii") for name in self._guard.writer.names]
            OpenAPIWithLimits.describe(app, prefixes, limited, names, own_body)

    def _is_limited(self, branch: RouteNode, method: str) -> bool:
        """Whether some rule that rejects looks at requests of this route; its template stands for their paths."""
        routed = branch.routed(method, FULL)
        plan = self._guard.rules.plan(method, branch.endpoint, "", routed.view)
        return any(not rule.shadow for rule in plan.rules) or bool(routed.later)


def _around(scope: Mapping[str, Any]) -> Any:
    """The router of other applications that the application is mounted in; at the start its own stands there."""
    router = scope.get("router")
    return None if router is getattr(scope.get("app"), "router", None) else router


def _first(*things: object) -> Any:
    return next((thing for thing in things if thing is not None), None)
