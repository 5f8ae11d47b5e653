"""Reads the routes of an application at start-up, and adds the limits that decorators have marked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...http.limiter import HttpLimiter
from ...http.route_checks import check_parameters
from ..error_handlers import find_handler, handles_status
from ..openapi import OpenAPIWithLimits
from .index import RouteIndex, outer_router
from .reader import RouteReader, application_behind
from .tree import FULL, RouteNode


def open_index(limits: HttpLimiter, inner: object, scope: Mapping[str, Any]) -> RouteIndex | None:
    """Return the index of the application that a scope belongs to; None where there are no routes."""
    outermost = application_behind(outer_router(scope))
    app = application_behind(scope.get("app"))
    app = application_behind(inner) if app is None else app
    adopt = partial(_adopt, limits)
    if outermost is not None:
        index = RouteIndex(outermost, True, adopt, find_handler(app))
        if app is None or index.reader.contains(app):
            return index
    if app is not None:
        return RouteIndex(app, outermost is None, adopt, find_handler(app))
    limits.adopt_no_routes()
    return None


def _adopt(limits: HttpLimiter, reader: RouteReader) -> None:
    limits.adopt(reader.marks.views, reader.marks.provided)
    check_parameters(list(reader.routes()), limits.rules)
    limited = frozenset(
        (node.endpoint, method)
        for node in reader.marks.nodes
        for method in node.methods or ()
        if _is_limited(limits, node, method)
    )
    names = [name.decode("ascii") for name in limits.writer.names]
    for app in {id(owner): owner for _, owner in reader.owners if hasattr(owner, "openapi_schema")}.values():
        prefixes = [prefix for prefix, owner in reader.owners if owner is app]
        own_body = limits.reject is None and not handles_status(app, 429)
        OpenAPIWithLimits.describe(app, prefixes, limited, names, own_body)


def _is_limited(limits: HttpLimiter, node: RouteNode, method: str) -> bool:
    """Return whether a rule that may reject applies to the route. Its template takes the place of a path."""
    match = node.match_for(method, FULL)
    plan = limits.rules.plan(method, node.endpoint, "", match.marks)
    return any(not rule.shadow for rule in plan.rules) or bool(match.deferred)
