"""Finds the route of a request without asking the router of the framework.

A path that was requested before is found in a bounded dictionary. A new path is found by a walk down a tree.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...http.limits import HttpLimiter, HttpLimits
from ...http.routes import check_parameters, check_routes
from ...http.warnings import warn_at_start
from ...rules.marks import Destination, ViewMarks
from ...rules.rule import with_defaults
from ...rules.ruleset import RuleSet
from ..dependencies import check_provided
from ..error_handlers import RejectionHandler, find_handler, handle_rejections, handles_status
from ..openapi import OpenAPIWithLimits, Operation, describe_response
from .reader import RouteReader, application_behind
from .tree import FULL, Lookup, RouteMatch, RouteNode, path_below

if TYPE_CHECKING:
    from ..request import ASGIRequest

_MAX_CACHED: Final = 10_000
_MAX_KEY: Final = 256
_log = logging.getLogger("ratelimit_mw")


class RouteIndex:
    """The routes of one application or router. Paths of the outermost one include those of its mounts."""

    handler: RejectionHandler | None = None

    def __init__(self, app: Any, is_outermost: bool, adopt: Callable[[RouteReader], None]) -> None:
        self._app = app
        self._root: str = getattr(app, "root_path", "")
        """The root path that FastAPI sets when it is called, instead of the server's."""
        self._is_outermost = is_outermost
        self._adopt = adopt
        self.differences = 0
        """How often the framework chose another route than this index."""
        self.read()

    def read(self) -> None:
        """Read the routes: at the start, and when one of the lists no longer has its size of ``sizes``."""
        reader = RouteReader(self._app)
        self._adopt(reader)
        self.reader = reader
        self._cached: dict[tuple[str, str, str, str | None], RouteMatch] = {}
        self._routes = [route for routes in reader.lists for route in routes]
        self.sizes = [(routes, len(routes)) for routes in reader.lists]

    def _are_replaced(self) -> bool:
        """Return whether routes were replaced. If so, they are read again before the next request."""
        current = (route for routes in self.reader.lists for route in routes)
        if all(new is old for new, old in zip(current, self._routes, strict=False)):
            return False
        self.sizes = [(self._routes, -1)]
        return True

    def find(self, request: ASGIRequest) -> RouteMatch:
        if self._root and "app" not in request.native:
            request.native = {**request.native, "root_path": self._root}
        scope = request.native
        root, path = self._place(scope) if scope.get("root_path") else ("", scope["path"])
        host = _host_for_routes(request) if self.reader.by_host else ""
        key = scope["type"], scope["method"], path, host  # a client may send any method, even "websocket"
        match = self._cached.get(key)
        if match is None:
            lookup = Lookup({**scope, "root_path": root}, path, host)
            match = self.reader.top.find(lookup)
            if lookup.is_cacheable and sum(map(len, filter(None, key))) <= _MAX_KEY:
                if len(self._cached) >= _MAX_CACHED:
                    self._cached.clear()
                self._cached[key] = match
        return match

    def params(self, request: ASGIRequest) -> dict[str, Any]:
        root, path = self._place(request.native)
        lookup = Lookup({**request.native, "root_path": root}, path, _host_for_routes(request))
        self.reader.top.find(lookup)
        return lookup.params

    def _place(self, scope: Any) -> tuple[str, str]:
        """Return the root path of the application, for the outermost one that of the server, and the path below it."""
        root: str = scope.get("root_path", "")
        if not root:
            return "", scope["path"]
        root = scope.get("app_root_path", root) if self._is_outermost else root
        return root, path_below(root, scope["path"])

    def compare(self, match: RouteMatch, endpoint: object) -> None:
        """Count the requests for which the framework chose another route, and log the first of them."""
        if match.leads_to(endpoint) or self._are_replaced():
            return
        self.differences += 1
        if self.differences == 1:
            _log.error(
                "the limits of the route %s were applied, but %r handled the request."
                " Check for a middleware inside RateLimitMiddleware that changes paths.",
                match.endpoint,
                endpoint,
            )

    def describe(self, request: ASGIRequest) -> tuple[Destination, dict[str, Any]]:
        """Return where a request goes, with all marks, and its path parameters, for commands."""
        match = self.find(request)
        return replace(match, marks=match.all_marks), self.params(request)


class RouteIndexes:
    """The routes of the applications that a middleware serves, nearly always one.

    A middleware in an application that is mounted uses the outer router, whose templates are whole.
    """

    def __init__(self, app: object, limits: HttpLimiter) -> None:
        self._app = app
        self._limits = limits
        self._by_start: dict[int, tuple[object, RouteIndex]] = {}
        self.has_routes = True
        """False once an application without routes was found."""

    def match(self, request: ASGIRequest) -> None:
        """Find the route of a request, and set it on the request."""
        scope = request.native
        start = ("router" in scope and _outer_router(scope)) or scope.get("app") or self._app
        entry = self._by_start.get(id(start))
        index = request.index = self.index_of(scope) if entry is None else entry[1]  # nearly always without a call
        if index is not None:
            for routes, size in index.sizes:
                if len(routes) != size:
                    index.read()
                    break
            match = request.match = index.find(request)
            request.endpoint = match.endpoint

    def index_of(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        """Return the index for a scope; None where there are no routes. Raises ``ConfigError`` for invalid marks."""
        if not self.has_routes:
            return None
        start = ("router" in scope and _outer_router(scope)) or scope.get("app") or self._app
        entry = self._by_start.get(id(start))
        if entry is None:
            index = self._open_index(scope)
            if index is None:
                self._limits.adopt_no_routes()
                self.has_routes = False
                warn_at_start(self._limits)
                return None
            entry = self._by_start[id(start)] = (start, index)
            warn_at_start(self._limits)
        return entry[1]

    def _open_index(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        outermost = application_behind(_outer_router(scope))
        app = application_behind(scope.get("app")) or application_behind(self._app)
        for root, is_outermost in ((outermost, True), (app, outermost is None)):
            if root is not None:
                adopt = partial(_adopt, self._limits, id(root))
                index = RouteIndex(root, is_outermost, adopt)
                if app is None or index.reader.contains(app):
                    index.handler = find_handler(app)
                    return index
        return None


def _outer_router(scope: Mapping[str, Any]) -> Any:
    """Return the router of the application that the current one is mounted in; None outside a mount."""
    router = scope.get("router")
    return None if router is getattr(scope.get("app"), "router", None) else router


def _host_for_routes(request: ASGIRequest) -> str | None:
    """Return the host as this version of Starlette reads it for its routes; None for one that no route matches."""
    line = next(iter(request.header_lines("host")), None)
    parse = getattr(sys.modules.get("starlette.routing"), "parse_host_header", None)
    if parse is None:  # before 1.0: in any case, up to the first colon
        return (line or "").partition(":")[0]
    parsed = parse(line)
    return parsed and parsed.host.lower()  # type: ignore[no-any-return]


def _adopt(limits: HttpLimiter, key: int, reader: RouteReader) -> None:
    """Add the limits of all routes, and describe them in OpenAPI."""
    views = [marks for node in reader.nodes for marks in node.views.all()]
    views.append(ViewMarks(tuple(limit.mark for limit in reader.limits)))
    routes = list(reader.routes())

    def check(rules: HttpLimits) -> None:
        for limit in reader.limits:
            check_provided(limit, with_defaults(limit.mark.rule, rules.settings.defaults))
        check_parameters(routes, rules.rules)
        check_routes(routes, rules.rules)

    provided = {limit.mark: limit.provides for limit in reader.limits if limit.provides}
    limits.adopt(views, provided, check, key)
    for _, owner in reader.owners:
        handle_rejections(owner)
    for app in {id(owner): owner for _, owner in reader.owners if hasattr(owner, "openapi_schema")}.values():
        prefixes = [prefix for prefix, owner in reader.owners if owner is app]
        has_own_body = limits.reject is None and not handles_status(app, 429)
        app.openapi = OpenAPIWithLimits(app, prefixes, partial(_describe, limits, reader, has_own_body))


def _describe(limits: HttpLimiter, reader: RouteReader, has_own_body: bool) -> tuple[frozenset[Operation], Any]:
    """Return the operations that the rules in effect limit, and their response to a rejection."""
    rules = limits.in_force
    limited = frozenset(
        (node.endpoint, method)
        for node in reader.nodes
        for method in node.methods or ()
        if _is_limited(rules.rules, node, method)
    )
    headers = [name.decode("ascii") for name in rules.writer.names]
    return limited, describe_response(headers, has_own_body, rules.settings.reset)


def _is_limited(rules: RuleSet, node: RouteNode, method: str) -> bool:
    """Return whether a rule that may reject applies to the route. Its template takes the place of a path."""
    match = node.match_for(method, FULL)
    plan = rules.plan(method, node.endpoint, "", match)
    return any(not rule.shadow for rule in plan.rules) or bool(match.deferred)
