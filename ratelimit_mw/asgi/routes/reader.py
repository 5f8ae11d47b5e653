"""Reads the routes of Starlette and FastAPI applications, and their marks, by attributes, not by classes.

FastAPI since 0.137 hides included routers behind objects without path or endpoint, which list the routes they contain;
before, it copied the routes. A mount is followed into its application, through middleware that keeps its ``app``.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...errors import ConfigError
from ...http.routes import Route, ViewMarksByMethod
from ...keys.features import UNMATCHED
from ...rules.marks import ViewMarks, marked_form, marks_of
from ...rules.match import METHODS
from ...rules.paths import deepen
from ..dependencies import DependencyLimit
from .dependants import ParameterTypes, calls_before
from .frontends import frontend_groups, frontend_nodes
from .tree import FULL, NO_ROUTE, NONE, OPAQUE, PARTIAL, CustomMatch, RouteMatch, RouteNode, RouteTree, Scope

_FRAMEWORKS: Final = ("starlette", "fastapi")
_MAX_DEPTH: Final = 32
_QUALITIES: Final = {"NONE": NONE, "PARTIAL": PARTIAL, "FULL": FULL}
_NOT_FOUND: Final = "not_found"  # the name of the default of a router, unless an application replaces it
_REST: Final = "/{path}"
_PARAMETER: Final = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")
# Starlette's own convertors without a slash in their values. Other convertors may match any path.
_WITHIN_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}


def application_behind(app: Any) -> Any:
    """Return the Starlette application or router inside middleware; None where there is none."""
    for _ in range(_MAX_DEPTH):
        if app is None or (_is_of_framework(*type(app).__mro__) and isinstance(getattr(app, "routes", None), list)):
            return app
        app = getattr(app, "app", None)
    return None


@dataclass(frozen=True)
class _Location:
    """The location of a router: its template, its parameters, the applications passed, the routers above, its name.

    ``paths`` is a pattern that matches at least the start of its paths.
    """

    prefix: str = ""
    parameters: frozenset[str] = frozenset()
    passed: tuple[object, ...] = ()
    above: tuple[int, ...] = ()
    name: str = ""
    paths: str = ""


class RouteReader:
    """The routes of an application. Raises ``ConfigError`` for marks that cannot work where they are.

    ``lists`` grow when routes are added. ``owners`` are the routers and applications read, with their prefixes.
    ``nodes`` are all routes with a view, or with an application that cannot be read.
    """

    def __init__(self, app: object) -> None:
        self.lists: list[list[Any]] = []
        self.owners: list[tuple[str, Any]] = []
        self.nodes: list[RouteNode] = []
        self.limits: list[DependencyLimit] = []
        self.by_host = False
        self.has_fallback = False  # whether a path without a route may have a response
        self.top = self._tree(app, _Location(), NO_ROUTE)
        _read_marks(self.nodes)

    def contains(self, app: object) -> bool:
        """Return whether the routes include those of another application."""
        return any(owner is app or owner is _router_of(app) for _, owner in self.owners)

    def routes(self) -> Iterator[Route]:
        """Yield all routes in their order. The handshake of a WebSocket is a GET."""
        for node in self.nodes:
            methods = ("GET",) if node.kind == "websocket" else sorted(node.methods or METHODS)
            views = {method: node.match_for(method, FULL).all_marks for method in methods}
            yield Route(node.endpoint, views, node.parameters, node.name, node.paths, conversions=node.conversions)
        if self.has_fallback:
            yield Route(UNMATCHED, dict.fromkeys(METHODS, ViewMarks()), pattern="/**")

    def _tree(self, owner: Any, location: _Location, missed: RouteMatch) -> RouteTree:
        router = _router_of(owner)
        self.owners += [(location.prefix, owner), (location.prefix, router)]
        self._watch(router)
        inside = replace(location, above=(*location.above, id(router)))
        nodes = [self._node(entry, route, inside) for entry, route in _entries(router)]
        frontends = sorted(self._frontends(router, location), key=lambda node: -len(node.shape))  # the longest is first
        self.nodes += frontends
        self.has_fallback |= getattr(router.default, "__name__", "") != _NOT_FOUND
        return RouteTree(nodes, missed, RouteTree(frontends, missed) if frontends else None)

    def _frontends(self, router: Any, location: _Location) -> Iterator[RouteNode]:
        for group in frontend_groups(router):
            calls = list(calls_before(group.dependant))
            node = {"passed": location.passed, "parameters": location.parameters, "calls": calls}
            yield from frontend_nodes(group, location.prefix, location.paths, {**node, "limits": self._limits(calls)})

    def _watch(self, router: Any) -> None:
        self.lists.append(router.routes)
        for route in router.routes:
            if (included := getattr(route, "original_router", None)) is not None:
                self._watch(included)

    def _limits(self, calls: list[object]) -> list[DependencyLimit]:
        limits = [call for call in calls if isinstance(call, DependencyLimit)]
        self.limits += limits
        return limits

    def _node(self, entry: Any, route: Any, location: _Location) -> RouteNode:
        """Return the node of a route; of a mount, with the routes of the application below it."""
        custom = _custom_match(entry, route)
        if not hasattr(entry, "param_convertors"):
            paths = f"{location.paths}/**"
            return RouteNode("/**", str(NO_ROUTE.endpoint), OPAQUE, location.passed, custom_match=custom, paths=paths)
        host = getattr(entry, "host_regex", None)
        is_mount = not hasattr(entry, "endpoint")
        methods = getattr(entry, "methods", None)
        conversions = ParameterTypes(getattr(entry, "dependant", None))
        node = RouteNode(
            "/**" if host else _path_shape(entry.path_format, entry.param_convertors),
            location.prefix + (_REST if host else entry.path_format),
            entry.app if is_mount else entry.endpoint,
            location.passed,
            None if is_mount else "http" if hasattr(entry, "methods") else "websocket",
            frozenset(methods) if methods else None,
            None if host else entry.path_regex,
            host,
            {**entry.param_convertors, **conversions.of_path()},
            location.parameters.union(entry.param_convertors) - ({"path"} if is_mount and not host else set()),
            custom,
            custom is None and _is_own(route, "handle"),
            is_mount,
            name=location.name + (getattr(entry, "name", None) or ""),
            paths=location.paths + ("/**" if host else _paths_of(entry)),
            conversions=conversions,
        )
        if is_mount and self._enter_mount(node, entry, location):
            return node
        node.calls = list(calls_before(getattr(entry, "dependant", None)))
        node.limits = self._limits(node.calls)
        self.nodes.append(node)
        return node

    def _enter_mount(self, node: RouteNode, entry: Any, location: _Location) -> bool:
        """Read the application below a path or host. Return whether it can be read."""
        self.by_host = self.by_host or node.host is not None
        owner = application_behind(entry.app) or application_behind(getattr(entry, "_base_app", None))
        if owner is None or id(_router_of(owner)) in location.above:
            return False
        passed = (*location.passed, entry.app)
        name = f"{node.name}:" if getattr(entry, "name", None) else location.name
        paths = node.paths.removesuffix("/**").removesuffix("/{path:path}")
        prefix = node.endpoint.removesuffix(_REST)
        below = _Location(prefix, node.parameters, passed, location.above, name, paths)
        node.below = self._tree(owner, below, RouteMatch(NO_ROUTE.endpoint, target=entry.app, passed=passed))
        return True


def _entries(router: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the routes of a router and of those it includes: each as it is included, and as it was made."""
    for route in router.routes:
        if hasattr(route, "effective_route_contexts"):
            for context in route.effective_route_contexts():
                yield context.starlette_route or context, context.original_route
        else:
            yield route, route


def _custom_match(entry: Any, route: Any) -> CustomMatch | None:
    """Return a function that asks a route of a foreign class, as the framework does; None for the frameworks' own."""
    as_made = getattr(entry, "original_route", None) is route
    matching = route if as_made else entry
    if hasattr(entry, "param_convertors") and _is_own(matching, "matches"):
        return None

    def match(scope: Scope) -> int:
        scope = {**scope}
        if as_made:
            scope["fastapi"] = {**scope.get("fastapi", {}), "effective_route_context": entry}
        quality, _ = matching.matches(scope)
        return _QUALITIES[quality.name]

    return match


def _is_own(route: object, method: str) -> bool:
    """Return whether a method of a route is the framework's, not that of a foreign class."""
    return _is_of_framework(next(cls for cls in type(route).__mro__ if method in vars(cls)))


def _is_of_framework(*classes: type) -> bool:
    return any(cls.__module__.partition(".")[0] in _FRAMEWORKS for cls in classes)


def _router_of(owner: Any) -> Any:
    return getattr(owner, "router", owner)


def _path_shape(template: str, convertors: Mapping[str, object]) -> str:
    """Return the template of a route as a pattern of the path tree, which matches at least the paths of the route.

    >>> _path_shape("/items/{id}", {}), _path_shape("/files/{rest}/raw", {"rest": object()})
    ('/items/{id}', '/files/**')
    """
    segments: list[str] = []
    for segment in template.split("/"):
        if not all(_is_within_segment(convertors.get(name)) for name in _PARAMETER.findall(segment)):
            return "/".join([*segments, "**"])
        segments.append(segment)
    return template


def _paths_of(entry: Any) -> str:
    """Return the template of a route as a pattern that matches at least its paths."""
    deep = {name for name, convertor in entry.param_convertors.items() if not _is_within_segment(convertor)}
    return deepen(entry.path_format, deep)


def _is_within_segment(convertor: object) -> bool:
    cls = type(convertor)
    return convertor is None or (cls.__module__ == "starlette.convertors" and cls.__name__ in _WITHIN_SEGMENT)


def _read_marks(nodes: Sequence[RouteNode]) -> None:
    """Read the marks of all routes into their nodes."""
    registered = {id(form) for node in nodes for form in _forms_of(node.target)}
    for node in nodes:
        early = [ViewMarks((limit.mark,)) for limit in node.limits if not limit.provides]
        outer = [*early, *node.calls, *_partials_of(node.target)]
        node.views = ViewMarksByMethod(_marked_view(node.target, registered), outer)
        messages = [message for marks in node.views.all() for message in marks.messages]
        if messages and node.kind != "websocket":
            raise ConfigError(f"{node.endpoint} is not a WebSocket route", of=f"@messages on {messages[0].view}")


def _marked_view(endpoint: Any, registered: set[int]) -> Any:
    """Return the endpoint, or its marked form where a decorator is above the one that registered it.

    A marked form with a route of its own keeps its marks: then this route is left unlimited on purpose.
    """
    form = marked_form(endpoint)
    is_late = form is not None and marks_of(endpoint) == ViewMarks() and id(form) not in registered
    return form if is_late else endpoint


def _partials_of(endpoint: Any) -> list[object]:
    """Return the functions that ``functools.partial`` wraps in an endpoint, the innermost first."""
    parts: list[object] = []
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
        parts.insert(0, endpoint)
    return parts


def _forms_of(endpoint: Any) -> Iterator[object]:
    """Yield an endpoint and the functions that its decorators wrap."""
    while endpoint is not None:
        yield endpoint
        endpoint = getattr(endpoint, "__wrapped__", None)
