"""The routes of the routers of Starlette and FastAPI, and the framework's own answer to which of them a request goes.

A path tree of all templates narrows the routes of a router to one or two. The framework's own ``matches`` of these
decides.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from ..http.routes import Route, ViewMarksByMethod, ViewNames
from ..keys.features import INVALID, UNMATCHED
from ..rules.marks import Destination, Mark, ViewMarks, marked_form, marks_of
from ..rules.match import METHODS
from ..rules.paths import PathTree, deepen
from .dependants import DependencyLimit, ParameterTypes, calls_before

Scope = Mapping[str, Any]

_FRAMEWORKS: Final = ("starlette", "fastapi")
_FULL: Final = 2  # the values of Starlette's ``Match``
_PARTIAL: Final = 1
_MAX_DEPTH: Final = 32
_NOT_FOUND: Final = "not_found"  # the name of the default of a router, unless an application replaces it
_REST: Final = "/{path:path}"
# Starlette's own convertors without a slash in their values. Other convertors may match any path.
_WITHIN_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}
_PARTIAL_MARKS: Final = ViewMarks(answers_options=True)  # Starlette rejects all methods that a route does not have


@dataclass(frozen=True, eq=False)
class RouteMatch(Destination):
    """Where a request goes: its whole template, and the framework's endpoint.

    ``deferred`` are the marks that are decided when their dependencies have run.
    """

    target: object = None
    deferred: tuple[Mark, ...] = ()

    @property
    def all_marks(self) -> ViewMarks:
        """The marks of the view, with the deferred ones."""
        marks = self.marks or ViewMarks()
        return replace(marks, marks=(*marks.marks, *self.deferred))


NO_ROUTE: Final = RouteMatch(UNMATCHED)
ROUTES_UNKNOWN: Final = RouteMatch()


class RouteFound(NamedTuple):
    """A route, its path parameters, and whether all requests with this path, method and host have the same route."""

    match: RouteMatch
    params: Mapping[str, Any]
    is_cacheable: bool = True


@dataclass(frozen=True)
class _Place:
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
    place: _Place
    matches: Callable[[Scope], tuple[Any, Scope]]
    is_own: bool = True
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
        self.limits = [call for call in self.calls if isinstance(call, DependencyLimit)]
        self._matches: dict[str | None, RouteMatch] = {}

    def match_for(self, method: str | None) -> RouteMatch:
        """Return the match of a request that reaches the view; with None, that of one which the route rejects."""
        key = method if method in self.views.by_method else method and "*"
        match = self._matches.get(key)
        if match is None:
            if method is None:
                marks, deferred = _PARTIAL_MARKS if self.is_own else ViewMarks(), []
            else:
                marks = self.views.for_method(method)
                deferred = [limit.mark for limit in self.limits if limit.provides]
            match = self._matches[key] = RouteMatch(
                self.endpoint,
                self.name,
                None if marks == ViewMarks() else marks,
                function=self.function,
                ends=not self.is_mount,
                conversions=self.conversions,
                target=self.target,
                deferred=tuple(dict.fromkeys(deferred)),
            )
        return match

    def describe(self) -> Route:
        """Describe the route, for checks and commands. The handshake of a WebSocket is a GET."""
        methods = ("GET",) if self.is_websocket else sorted(self.methods or METHODS)
        views = {method: self.match_for(method).all_marks for method in methods}
        return Route(self.endpoint, views, self.parameters, self.name, self.pattern, conversions=self.conversions)


class RouteTable:
    """The routes of one router in their order. ``missed`` is the match of a request without a route."""

    def __init__(self, routes: list[AppRoute], missed: RouteMatch, fallback: "RouteTable | None" = None) -> None:
        self._routes = routes
        self._missed = missed
        self._fallback = fallback
        self._tree = PathTree((number, route.shape) for number, route in enumerate(routes))

    def find(self, scope: Scope, is_cacheable: bool = True) -> RouteFound:
        """Return the route of a request, as the router does: the first with its method, else the first with its path.

        A mount that matches the path is final.
        """
        partial: RouteFound | None = None
        for number in self._candidates(path_below(scope.get("root_path", ""), scope["path"])):
            route = self._routes[number]
            is_cacheable = is_cacheable and route.is_own
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
        if self._fallback is not None:
            return self._fallback.find(scope, is_cacheable)
        return RouteFound(self._missed, scope["path_params"], is_cacheable)

    def _candidates(self, path: str) -> Iterable[int]:
        numbers = self._tree.match(path)
        if path[-1:] == "\n":  # a pattern that ends in "$" also matches a line feed after the path
            return sorted({*numbers, *self._tree.match(path[:-1])})
        return numbers


class RouteReader:
    """Reads the routes of an application, and their marks. Raises ``ConfigError`` for marks out of place.

    ``routes`` are all with a view, or with an application that cannot be read. ``owners`` are the applications and
    routers. ``lists`` grow when routes are added.
    """

    def __init__(self, app: Any) -> None:
        self.routes: list[AppRoute] = []
        self.owners: list[Any] = []
        self.lists: list[list[Any]] = []
        self.by_host = False
        """Whether a route depends on the host."""
        self._has_fallback = False  # whether a path without a route may have a response
        self.table = self._read_router(app, _Place(), NO_ROUTE)
        _read_marks(self.routes)

    @property
    def limits(self) -> list[DependencyLimit]:
        """The limits of all dependencies."""
        return [limit for route in self.routes for limit in route.limits]

    def describe(self) -> Iterator[Route]:
        """Describe all routes in their order, for checks and commands."""
        for route in self.routes:
            yield route.describe()
        if self._has_fallback:
            yield Route(UNMATCHED, dict.fromkeys(METHODS, ViewMarks()), pattern="/**")

    def contains(self, app: object) -> bool:
        """Return whether the routes include those of another application."""
        return any(owner is app or owner is router_of(app) for owner in self.owners)

    def _read_router(self, owner: Any, place: _Place, missed: RouteMatch) -> RouteTable:
        router = router_of(owner)
        self.owners += [owner, router]
        self._watch(router)
        self._has_fallback |= getattr(router.default, "__name__", "") != _NOT_FOUND
        inside = replace(place, above=(*place.above, id(router)), app=owner)
        routes = [self._read_route(entry, made, inside) for entry, made in _entries(router)]
        frontends = sorted(_frontends(router, inside), key=lambda route: -len(route.shape))  # the longest is first
        self.routes += frontends
        return RouteTable(routes, missed, RouteTable(frontends, missed) if frontends else None)

    def _watch(self, router: Any) -> None:
        self.lists.append(router.routes)
        for route in router.routes:
            if (included := getattr(route, "original_router", None)) is not None:
                self._watch(included)

    def _read_route(self, entry: Any, made: Any, place: _Place) -> AppRoute:
        """Return a route; for a mount, with the routes of the application below it."""
        matches, is_own = _matches_of(entry, made)
        if not hasattr(entry, "param_convertors"):  # of another class, which may match any path
            return AppRoute("/**", f"{place.pattern}/**", entry, place, matches, False, str(UNMATCHED), entry)
        is_host = hasattr(entry, "host_regex")
        names = {name for name, convertor in entry.param_convertors.items() if not _is_within_segment(convertor)}
        pattern = _REST if is_host else deepen(entry.path_format, names)
        is_mount = not hasattr(entry, "endpoint")
        route = AppRoute(
            "/**" if is_host else _shape(pattern, entry.path_regex),
            place.pattern + pattern,
            entry,
            place,
            matches,
            is_own,
            target=entry.app if is_mount else entry.endpoint,
            parameters=place.parameters.union(entry.param_convertors)
            - ({"path"} if is_mount and not is_host else set()),
        )
        self.by_host |= is_host
        if is_mount:
            route.below = self._read_mount(route, entry)
        if route.below is None:
            self.routes.append(route)
        return route

    def _read_mount(self, route: AppRoute, entry: Any) -> RouteTable | None:
        """Read the application below a path or host; None where it cannot be read, or is one of those above."""
        owner = application_behind(entry.app) or application_behind(getattr(entry, "_base_app", None))
        if owner is None or id(router_of(owner)) in route.place.above:
            return None
        name = f"{route.name}:" if getattr(entry, "name", None) else route.place.name
        below = _Place(route.pattern.removesuffix(_REST), route.parameters, route.place.above, name)
        return self._read_router(owner, below, replace(NO_ROUTE, target=entry.app))


def path_below(root: str, path: str) -> str:
    """Return the path that a router at ``root`` sees, exactly as Starlette does.

    >>> path_below("/api", "/api/items"), path_below("/api", "/apis"), path_below("/api", "/api")
    ('/items', '/apis', '')
    """
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


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


def _entries(router: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the routes of a router and of those it includes: each as it is included, and as it was made.

    FastAPI since 0.137 keeps an included router as one object, which lists its routes. Before, it copied them.
    """
    for route in router.routes:
        if hasattr(route, "effective_route_contexts"):
            for context in route.effective_route_contexts():
                yield context.starlette_route or context, context.original_route
        else:
            yield route, route


def _matches_of(entry: Any, made: Any) -> tuple[Callable[[Scope], tuple[Any, Scope]], bool]:
    """Return a function that asks a route whether it matches, and whether it is the framework's own."""
    asked = made if getattr(entry, "original_route", None) is made else entry  # included, of FastAPI's class
    is_own = is_of_framework(next(cls for cls in type(asked).__mro__ if "matches" in vars(cls)))
    if is_own or asked is entry:
        return entry.matches, is_own
    context = {"effective_route_context": entry}
    return lambda scope: made.matches({**scope, "fastapi": {**scope.get("fastapi", {}), **context}}), False


def _frontends(router: Any, place: _Place) -> Iterator[AppRoute]:
    """Yield the frontends of a router of FastAPI and of those it includes. They serve files where no route matches."""
    groups = [*getattr(router, "_low_priority_routes", ())]
    for included in router.routes:
        groups += getattr(included, "effective_low_priority_routes", list)()
    for group in groups:
        for route in getattr(group, "original_route", group).routes:
            path = (getattr(group, "frontend_prefix", "") + route.path).rstrip("/")
            matches = functools.partial(route.matches_with_path, path=path or "/")
            yield AppRoute(f"{path}/**", place.pattern + path + _REST, group, place, matches)


def is_of_framework(*things: Any) -> bool:
    """Return whether one of some classes or functions is of Starlette or FastAPI."""
    return any(thing.__module__.partition(".")[0] in _FRAMEWORKS for thing in things)


def _is_within_segment(convertor: object) -> bool:
    cls = type(convertor)
    return cls.__module__ == "starlette.convertors" and cls.__name__ in _WITHIN_SEGMENT


def _shape(pattern: str, regex: re.Pattern[str]) -> str:
    """Return a pattern of the path tree, whose segments have stars, that matches at least the paths of a route.

    >>> _shape("/items/{id}", re.compile("")), _shape("/files/{rest:path}/raw", re.compile(""))
    ('/items/{id}', '/files/**')
    """
    before, deep, _ = pattern.partition(":path}")
    if regex.flags & re.IGNORECASE:
        return "/**"
    return f"{before.rpartition('/')[0]}/**" if deep else pattern


def _read_marks(routes: list[AppRoute]) -> None:
    """Read the marks of the views, and of all that is called before them, and name the views."""
    names = ViewNames()
    registered = {id(form) for route in routes for form in _forms_of(route.target)}
    for route in routes:
        early = [ViewMarks((limit.mark,)) for limit in route.limits if not limit.provides]
        target: Any = route.target or route
        route.function = names.name(inspect.unwrap(target), route.name or route.endpoint)
        outer = [*early, *route.calls, *_partials_of(route.target)]
        route.views = ViewMarksByMethod(_marked_view(route.target, registered), outer)
        messages = [message for marks in route.views.all() for message in marks.messages]
        if messages and not route.is_websocket:
            raise ConfigError(f"{route.endpoint} is not a WebSocket route", of=f"@messages on {messages[0].view}")


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
