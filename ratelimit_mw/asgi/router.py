"""Finds the route of a request by the framework's own routes.

A path table of all templates narrows the routes of a router to one or two. The framework's own ``matches`` of these
decides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..http.routes import Route, ViewMarksByMethod
from ..keys.features import INVALID, UNMATCHED
from ..rules.marks import Destination, ViewMarks
from ..rules.match import METHODS
from ..rules.paths import PathTable
from .dependants import ParameterTypes, calls_before

Scope = Mapping[str, Any]

_FULL: Final = 2  # the values of Starlette's ``Match``
_PARTIAL: Final = 1
_PARTIAL_MARKS: Final = ViewMarks(answers_options=True)  # Starlette rejects all methods that a route does not have


@dataclass(frozen=True, eq=False)
class RouteMatch(Destination):
    """Where a request goes: its whole template, and the framework's endpoint."""

    target: object = None


NO_ROUTE: Final = RouteMatch(UNMATCHED)
ROUTES_UNKNOWN: Final = RouteMatch()


class RouteFound(NamedTuple):
    """A route, its path parameters, and whether all requests with this path, method and host have the same route."""

    match: RouteMatch
    params: Mapping[str, Any]
    is_cacheable: bool = True


@dataclass(frozen=True)
class RouterPlace:
    """The place of a router: a pattern of its paths, the parameters in it, the routers above, its name."""

    pattern: str = ""
    parameters: frozenset[str] = frozenset()
    above: tuple[int, ...] = ()
    name: str = ""
    app: Any = None


@dataclass(eq=False)
class AppRoute:
    """One route, with all that the mounts above it add. ``methods`` None: for every method."""

    shape: str
    """A pattern that matches at least the paths of the route, below its router."""
    pattern: str
    """A pattern that matches at least the whole paths."""
    entry: Any
    """The framework's own object."""
    place: RouterPlace
    matches: Callable[[Scope], tuple[Any, Scope]]
    is_plain: bool = True
    """Whether its ``matches`` is the framework's, which asks for nothing but path, method and host."""
    endpoint: str = ""
    target: object = None
    function: str = ""
    """The name of the view for keys."""
    parameters: frozenset[str] = frozenset()
    below: "RouteTable | None" = None
    views: ViewMarksByMethod = field(default_factory=lambda: ViewMarksByMethod(None))

    def __post_init__(self) -> None:
        entry, dependant = self.entry, getattr(self.entry, "dependant", None)
        self.endpoint = self.endpoint or self.pattern.replace(":path}", "}")
        self.is_mount = getattr(entry, "endpoint", None) is None
        methods = getattr(entry, "methods", None)
        self.methods = frozenset(methods) if methods else None
        self.is_websocket = not self.is_mount and not hasattr(entry, "methods")
        self.name = self.place.name + (getattr(entry, "name", None) or "")
        self.conversions = ParameterTypes(dependant)
        self.calls = list(calls_before(dependant))
        self._matches: dict[str | None, RouteMatch] = {}

    def match_for(self, method: str | None) -> RouteMatch:
        """Return the match of a request that reaches the view; with None, that of one which the route rejects."""
        key = method if method in self.views.by_method else method and "*"
        match = self._matches.get(key)
        if match is None:
            if method is None:
                marks = _PARTIAL_MARKS if self.is_plain else ViewMarks()
            else:
                marks = self.views.for_method(method)
            match = self._matches[key] = RouteMatch(
                self.endpoint,
                self.name,
                None if marks == ViewMarks() else marks,
                function=self.function,
                ends=not self.is_mount,
                conversions=self.conversions,
                target=self.target,
            )
        return match

    def describe(self) -> Route:
        """Describe the route, for checks and commands. The handshake of a WebSocket is a GET."""
        methods = ("GET",) if self.is_websocket else sorted(self.methods or METHODS)
        views = {method: self.views.for_method(method) for method in methods}
        conversions, function = self.conversions, self.function
        return Route(self.endpoint, views, self.parameters, self.name, self.pattern, conversions, function)


class RouteTable:
    """The routes of one router in their order. ``missed`` is the match of a request without a route."""

    def __init__(self, routes: list[AppRoute], missed: RouteMatch) -> None:
        self._routes = routes
        self._missed = missed
        self._table = PathTable((number, route.shape) for number, route in enumerate(routes))

    def find(self, scope: Scope, is_cacheable: bool = True) -> RouteFound:
        """Return the route of a request, as the router does: the first with its method, else the first with its path.

        A mount that matches the path is final.
        """
        partial: RouteFound | None = None
        for number in self._candidates(path_below(scope.get("root_path", ""), scope["path"])):
            route = self._routes[number]
            is_cacheable = is_cacheable and route.is_plain
            try:
                quality, child = route.matches(scope)
            except ValueError:  # more digits than Python converts: the application responds with an error
                invalid = dict.fromkeys(route.parameters, INVALID)
                return RouteFound(route.match_for(scope["method"]), invalid, is_cacheable)
            if quality.value == _FULL:
                if route.below is not None:
                    return route.below.find({**scope, **child}, is_cacheable)
                return RouteFound(route.match_for(scope["method"]), child.get("path_params", {}), is_cacheable)
            if quality.value == _PARTIAL and partial is None:
                partial = RouteFound(route.match_for(None), child.get("path_params", {}))
        if partial is not None:
            return partial._replace(is_cacheable=is_cacheable)
        return RouteFound(self._missed, scope["path_params"], is_cacheable)

    def _candidates(self, path: str) -> Iterable[int]:
        numbers = self._table.match(path)
        if path[-1:] == "\n":  # a pattern that ends in "$" also matches a line feed after the path
            return sorted({*numbers, *self._table.match(path[:-1])})
        return numbers


def path_below(root: str, path: str) -> str:
    """Return the path that a router at ``root`` sees, exactly as Starlette does.

    >>> path_below("/api", "/api/items"), path_below("/api", "/apis"), path_below("/api", "/api")
    ('/items', '/apis', '')
    """
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path
