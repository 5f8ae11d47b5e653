"""Finds the route of a request by the framework's own routes.

A path table of all templates narrows the routes of a router to one or two. The framework's own ``matches`` of these
decides.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from ..http.routes import Route
from ..keys.features import INVALID, UNMATCHED
from ..rules.marks import NO_ROUTE, Destination
from ..rules.match import METHODS
from ..rules.paths import PathTable, deepen
from .dependants import ParameterTypes, dependants_of
from .types import Scope

_FULL: Final = 2  # the values of Starlette's ``Match``
_PARTIAL: Final = 1
REST: Final = "/{path:path}"
"""The paths below a mount."""
_FRAMEWORKS: Final = ("starlette", "fastapi")
_MAX_DEPTH: Final = 32
# Starlette's own convertors without a slash in their values. Other convertors may match any path.
_WITHIN_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}

RouteFound = tuple[Destination, Mapping[str, Any]]
"""Where a request goes, and its path parameters."""


class AppRoute(Route):
    """One route, with all that the mounts above it add.

    Args:
        entry: The framework's own object.
        original: The object before its router was included; else ``entry``.
        table: The routes of its router.
    """

    parameters: Collection[str]
    below: "RouteTable | None" = None
    """The routes of the application below a path or host, where they can be read."""

    def __init__(self, entry: Any, original: Any, table: "RouteTable") -> None:
        self.entry, self.table = entry, table
        self.matches, self.is_plain = _matches_of(entry, original)
        """The ``matches`` of the route, and whether it is the framework's, which reads only path, method and host."""
        self.is_host = hasattr(entry, "host_regex")
        is_mount = getattr(entry, "endpoint", None) is None
        self.is_websocket = not is_mount and not hasattr(entry, "methods")
        convertors: Mapping[str, Any] = getattr(entry, "param_convertors", {})
        parameters = {*table.parameters, *convertors}
        path, self.shape = REST, "/**"
        if (regex := getattr(entry, "path_regex", None)) is not None:
            deep = {name for name, convertor in convertors.items() if not _is_within_segment(convertor)}
            path = deepen(entry.path_format, deep)
            self.shape = _shape(path, regex)
            parameters -= {"path"} if is_mount else set()
        pattern = table.pattern + path  # ``shape`` is one for the paths below its router
        target, endpoint, mounted = entry, str(UNMATCHED), None
        if regex is not None or self.is_host:  # one of another class may match any path
            target, endpoint = entry.app if is_mount else entry.endpoint, pattern.replace(":path}", "}")
            mounted = entry.app if is_mount else None
        *before, view = dependants_of(getattr(entry, "dependant", None))
        self.calls = [each.call for each in before]
        """The dependencies that FastAPI calls before the view."""
        own_name = getattr(entry, "name", None) or ""
        name, types = table.name + own_name, ParameterTypes([view, *before])
        methods = ["GET"] if self.is_websocket else sorted(getattr(entry, "methods", None) or METHODS)
        to = Destination(endpoint, name, ends=not is_mount, convert=types.convert)
        super().__init__(to, methods=methods, parameters=parameters, pattern=pattern, target=target)
        # Starlette itself rejects the methods that a route does not have.
        self.answers_options = self.is_plain and "OPTIONS" not in methods
        app = application_behind(mounted) or application_behind(getattr(entry, "_base_app", None))
        if app is not None and all(router_of(app) is not router for router in table.routers):
            start = f"{name}:" if own_name else name
            self.below = RouteTable(app, pattern.removesuffix(REST), parameters, start, table.routers)


class RouteTable:
    """The routes of one router in their order, with those of the applications that it mounts.

    Args:
        app: The application of the router, or the router itself.
        pattern: A pattern of the paths that lead to it.
        parameters: The names of the parameters in these paths.
        name: The start of the names of its routes.
        above: The routers around it, which it does not read again.
    """

    def __init__(
        self, app: Any, pattern: str = "", parameters: Collection[str] = (), name: str = "", above: tuple[Any, ...] = ()
    ) -> None:
        self.app, self.router = app, router_of(app)
        self.pattern, self.parameters, self.name = pattern, parameters, name
        self.routers = (*above, self.router)
        self._routes = [AppRoute(entry, original, self) for entry, original in entries_of(self.router)]
        self._table = PathTable((number, route.shape) for number, route in enumerate(self._routes))

    def all_routes(self) -> Iterator[AppRoute]:
        """Yield all routes, each before those below it."""
        for route in self._routes:
            yield route
            if route.below is not None:
                yield from route.below.all_routes()

    def find(self, scope: Scope) -> RouteFound:
        """Return the route of a request, as the router does: the first with its method, else the first with its path.

        A mount that matches the path is final. Where no route matches, FastAPI serves the files of the longest path.
        """
        found: RouteFound = NO_ROUTE, scope["path_params"]
        rank: float = -1
        for number in self._candidates(path_below(scope.get("root_path", ""), scope["path"])):
            route = self._routes[number]
            try:
                quality, child = route.matches(scope)
            except ValueError:  # more digits than Python converts: the application responds with an error
                return route.destination(scope["method"]), dict.fromkeys(route.parameters, INVALID)
            params = child.get("path_params", {})
            if quality.value == _FULL:
                if route.below is not None:
                    return route.below.find({**scope, **child})
                specificity = child.get("fastapi", {}).get("frontend_specificity")
                if specificity is None:
                    return route.destination(scope["method"]), params
                if specificity > rank:
                    found, rank = (route.destination(scope["method"]), params), specificity
            if quality.value == _PARTIAL and found[0] is NO_ROUTE:
                found, rank = (route.destination(None), params), math.inf
        return found

    def _candidates(self, path: str) -> Iterable[int]:
        numbers = self._table.match(path)
        if path[-1:] == "\n":  # a pattern that ends in "$" also matches a line feed after the path
            return sorted({*numbers, *self._table.match(path[:-1])})
        return numbers


def path_below(root: str, path: str) -> str:
    """Return the path that a router at ``root`` sees, exactly as Starlette does.

    >>> [path_below("/api", path) for path in ("/api/items", "/apis", "/api", "/web/items")]
    ['/items', '/apis', '', '/web/items']
    """
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def entries_of(router: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the routes of a router and of those it includes: each as it is included, and as it was made.

    FastAPI since 0.137 keeps an included router as one object, which lists its routes. Before, it copied them.
    """
    for route in router.routes:
        if hasattr(route, "effective_route_contexts"):
            for context in route.effective_route_contexts():
                yield context.starlette_route or context, context.original_route
        else:
            yield route, route
    for route in getattr(router, "_iter_low_priority_routes", tuple)():  # they serve files where no route matches
        yield route, route


def routers_in(router: Any) -> Iterator[Any]:
    """Yield a router, and those that it includes."""
    yield router
    for route in router.routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from routers_in(included)


def _matches_of(entry: Any, original: Any) -> tuple[Callable[[Scope], tuple[Any, Scope]], bool]:
    """Return a function that asks a route whether it matches, and whether its ``matches`` is the framework's own."""
    route = original if getattr(entry, "original_route", None) is original else entry
    is_plain = is_of_framework(next(cls for cls in type(route).__mro__ if "matches" in vars(cls)))
    if is_plain or route is entry:
        return entry.matches, is_plain
    context = {"effective_route_context": entry}  # with which FastAPI asks an included route of your own class
    return lambda scope: original.matches({**scope, "fastapi": {**scope.get("fastapi", {}), **context}}), False


def _is_within_segment(convertor: object) -> bool:
    cls = type(convertor)
    return cls.__module__ == "starlette.convertors" and cls.__name__ in _WITHIN_SEGMENT


def _shape(pattern: str, regex: re.Pattern[str]) -> str:
    """Return a pattern of the path table, whose segments have stars, that matches at least the paths of a route.

    >>> _shape("/items/{id}", re.compile("")), _shape("/files/{rest:path}/raw", re.compile(""))
    ('/items/{id}', '/files/**')
    """
    before, deep, _ = pattern.partition(":path}")
    if regex.flags & re.IGNORECASE:
        return "/**"
    return f"{before.rpartition('/')[0]}/**" if deep else pattern


def layers_of(app: Any) -> Iterator[Any]:
    """Yield an application, and those inside that middleware keeps as its ``app``."""
    for _ in range(_MAX_DEPTH):
        if app is None:
            return
        yield app
        app = getattr(app, "app", None)


def application_behind(app: Any) -> Any:
    """Return the Starlette application or router inside middleware; None where there is none."""
    of_frameworks = (layer for layer in layers_of(app) if is_of_framework(*type(layer).__mro__))
    return next((layer for layer in of_frameworks if isinstance(getattr(layer, "routes", None), list)), None)


def router_of(owner: Any) -> Any:
    """Return the router of an application; a router itself."""
    return getattr(owner, "router", owner)


def is_of_framework(*things: Any) -> bool:
    """Return whether one of some classes or functions is of Starlette or FastAPI."""
    return any(str(getattr(thing, "__module__", "")).partition(".")[0] in _FRAMEWORKS for thing in things)
