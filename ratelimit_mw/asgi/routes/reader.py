"""Reads the routes of Starlette and FastAPI applications by their attributes, not by their classes.

FastAPI since 0.137 hides included routers behind objects without path or endpoint, which list the routes they contain;
before, it copied the routes. A mount is followed into its application, through middleware that keeps its ``app``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ...rules.describe import Route
from ...rules.match import METHODS
from .marks import RouteMarks, every_mark
from .match import NO_ROUTE, OPAQUE, RouteMatch
from .shape import path_shape
from .tree import FULL, NONE, PARTIAL, CustomMatch, RouteNode, RouteTree, Scope

_FRAMEWORKS: Final = ("starlette", "fastapi")
_MAX_DEPTH: Final = 32
_QUALITIES: Final = {"NONE": NONE, "PARTIAL": PARTIAL, "FULL": FULL}
_REST: Final = "/{path}"


def application_behind(app: Any) -> Any:
    """Return the Starlette application or router inside of middleware; None where there is none."""
    for _ in range(_MAX_DEPTH):
        if app is None or (_is_of_framework(type(app)) and isinstance(getattr(app, "routes", None), list)):
            return app
        app = getattr(app, "app", None)
    return None


@dataclass(frozen=True)
class _Location:
    """The location of a router: its template, its parameters, the applications passed, the routers above."""

    prefix: str = ""
    parameters: frozenset[str] = frozenset()
    passed: tuple[object, ...] = ()
    above: tuple[int, ...] = ()


class RouteReader:
    """The routes of an application. Raises ``ConfigError`` for marks that cannot work where they are.

    ``lists`` grow when routes are added. ``owners`` are the routers and applications read, with their prefixes.
    """

    def __init__(self, app: object) -> None:
        self.lists: list[list[Any]] = []
        self.owners: list[tuple[str, object]] = []
        self.by_host = False
        self.marks = RouteMarks()
        self.top = self._tree(app, _Location(), NO_ROUTE)
        self.marks.claim_late_marks()

    def contains(self, app: object) -> bool:
        """Return whether the routes include those of another application."""
        return any(owner is app or owner is _router_of(app) for _, owner in self.owners)

    def routes(self) -> Iterator[Route]:
        """Yield all routes in their order. The handshake of a WebSocket is a GET."""
        for node in self.marks.nodes:
            methods = ("GET",) if node.kind == "websocket" else sorted(node.methods or METHODS)
            views = {method: every_mark(node.match_for(method, FULL)) for method in methods}
            yield Route(node.endpoint, views, node.parameters)

    def _tree(self, owner: Any, location: _Location, missed: RouteMatch) -> RouteTree:
        router = _router_of(owner)
        self.owners += [(location.prefix, owner), (location.prefix, router)]
        self._watch(router)
        inside = replace(location, above=(*location.above, id(router)))
        nodes = [self._node(entry, route, inside) for entry, route in _entries(router)]
        limits = [limit for route in _fallbacks(router) for limit in self.marks.read_fallback(route)]
        return RouteTree(nodes, missed.with_marks(None, limits))

    def _watch(self, router: Any) -> None:
        self.lists.append(router.routes)
        for route in router.routes:
            if (included := getattr(route, "original_router", None)) is not None:
                self._watch(included)

    def _node(self, entry: Any, route: Any, location: _Location) -> RouteNode:
        if not hasattr(entry, "param_convertors"):
            custom = _custom_match(entry, route)
            return RouteNode("/**", str(NO_ROUTE.endpoint), OPAQUE, location.passed, custom_match=custom)
        if not hasattr(entry, "endpoint"):
            return self._mount(entry, route, location)
        is_http = hasattr(entry, "methods")
        node = RouteNode(
            path_shape(entry.path_format, entry.param_convertors),
            location.prefix + entry.path_format,
            entry.endpoint,
            location.passed,
            "http" if is_http else "websocket",
            frozenset(entry.methods) if is_http and entry.methods else None,
            entry.path_regex,
            convertors=entry.param_convertors,
            parameters=location.parameters.union(entry.param_convertors),
            custom_match=_custom_match(entry, route) if _has_own_matches(entry, route) else None,
        )
        self.marks.read(node, getattr(entry, "dependant", None))
        return node

    def _mount(self, entry: Any, route: Any, location: _Location) -> RouteNode:
        """Return the node of a path or host with a router below it, or with an application that cannot be read."""
        host = getattr(entry, "host_regex", None)
        template = location.prefix + (_REST if host else entry.path_format)
        parameters = location.parameters.union(entry.param_convertors) - (frozenset() if host else {"path"})
        node = RouteNode(
            "/**" if host else path_shape(entry.path_format, entry.param_convertors),
            template,
            entry.app,
            location.passed,
            pattern=None if host else entry.path_regex,
            host=host,
            convertors=entry.param_convertors,
            parameters=parameters,
            custom_match=_custom_match(entry, route) if _has_own_matches(entry, route) else None,
            is_mount=True,
        )
        self.by_host = self.by_host or host is not None
        owner = application_behind(entry.app) or application_behind(getattr(entry, "_base_app", None))
        if owner is None or id(_router_of(owner)) in location.above:
            self.marks.read(node, None)
            return node
        passed = (*location.passed, entry.app)
        below = _Location(template.removesuffix(_REST), parameters, passed, location.above)
        node.below = self._tree(owner, below, RouteMatch(NO_ROUTE.endpoint, entry.app, passed))
        return node


def _entries(router: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the routes of a router and of those it includes: each as it is included, and as it was made."""
    for route in router.routes:
        if hasattr(route, "effective_route_contexts"):
            for context in route.effective_route_contexts():
                yield context.starlette_route or context, context.original_route
        else:
            yield route, route


def _fallbacks(router: Any) -> Iterator[Any]:
    """Yield the routes of FastAPI's frontends, which match when no other route does."""
    yield from getattr(router, "_low_priority_routes", ())
    for route in router.routes:
        if hasattr(route, "effective_low_priority_routes"):
            yield from route.effective_low_priority_routes()


def _custom_match(entry: Any, route: Any) -> CustomMatch:
    """Return a function that asks a route of a foreign class, as the framework does."""
    as_made = getattr(entry, "original_route", None) is route

    def match(scope: Scope) -> int:
        scope = {**scope}
        if as_made:
            scope["fastapi"] = {**scope.get("fastapi", {}), "effective_route_context": entry}
        quality, _ = (route if as_made else entry).matches(scope)
        return _QUALITIES[quality.name]

    return match


def _has_own_matches(entry: Any, route: Any) -> bool:
    """Return whether a class outside of the frameworks overrides ``matches``."""
    asked = route if getattr(entry, "original_route", None) is route else entry
    owner = next(cls for cls in type(asked).__mro__ if "matches" in vars(cls))
    return owner.__module__.partition(".")[0] not in _FRAMEWORKS


def _is_of_framework(cls: type) -> bool:
    return any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in cls.__mro__)


def _router_of(owner: Any) -> Any:
    return getattr(owner, "router", owner)
