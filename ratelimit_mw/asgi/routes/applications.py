"""Adds the limits that decorators have marked on the routes of an application."""

from __future__ import annotations

from ...http.limiter import HttpLimiter
from ...http.route_checks import check_parameters
from ...rules.marks import ViewMarks
from ..error_handlers import handles_status
from ..openapi import OpenAPIWithLimits
from .reader import RouteReader
from .tree import FULL, RouteNode


def adopt_routes(limits: HttpLimiter, reader: RouteReader) -> None:
    """Add the limits of all routes, and describe them in OpenAPI."""
    views = [marks for node in reader.nodes for marks in node.views.all()]
    views.append(ViewMarks(tuple(limit.mark for limit in reader.limits)))
    limits.adopt(views, {limit.mark: limit.provides for limit in reader.limits if limit.provides})
    check_parameters(list(reader.routes()), limits.rules)
    limited = frozenset(
        (node.endpoint, method)
        for node in reader.nodes
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
