"""Reads the routes of an application of Starlette or FastAPI, with those of its mounts, and their marks."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from ..errors import ConfigError
from ..http.routes import Route, ViewMarksByMethod, ViewNames
from ..keys.features import UNMATCHED
from ..rules.marks import ViewMarks, marked_form, marks_of
from ..rules.match import METHODS
from ..rules.paths import deepen
from .router import NO_ROUTE, AppRoute, RouteMatch, RouterPlace, RouteTable, Scope

_NOT_FOUND: Final = "not_found"  # the name of the default of a router, unless an application replaces it
_REST: Final = "/{path:path}"
_FRAMEWORKS: Final = ("starlette", "fastapi")
_MAX_DEPTH: Final = 32
# Starlette's own convertors without a slash in their values. Other convertors may match any path.
_WITHIN_SEGMENT: Final = {"StringConvertor", "IntegerConvertor", "FloatConvertor", "UUIDConvertor"}


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
        self.table = self._read_router(app, RouterPlace(), NO_ROUTE)
        _read_marks(self.routes)

    def describe(self) -> Iterator[Route]:
        """Describe all routes in their order, for checks and commands."""
        for route in self.routes:
            yield route.describe()
        if self._has_fallback:
            yield Route(UNMATCHED, dict.fromkeys(METHODS, ViewMarks()), pattern="/**")

    def contains(self, app: object) -> bool:
        """Return whether the routes include those of another application."""
        return any(owner is app or owner is router_of(app) for owner in self.owners)

    def _read_router(self, owner: Any, place: RouterPlace, missed: RouteMatch) -> RouteTable:
        router = router_of(owner)
        self.owners += [owner, router]
        self._watch(router)
        self._has_fallback |= getattr(router.default, "__name__", "") != _NOT_FOUND
        inside = replace(place, above=(*place.above, id(router)), app=owner)
        return RouteTable([self._read_route(entry, made, inside) for entry, made in _entries(router)], missed)

    def _watch(self, router: Any) -> None:
        self.lists.append(router.routes)
        for route in router.routes:
            if (included := getattr(route, "original_router", None)) is not None:
                self._watch(included)

    def _read_route(self, entry: Any, made: Any, place: RouterPlace) -> AppRoute:
        """Return a route; for a mount, with the routes of the application below it."""
        matches, is_plain = _matches_of(entry, made)
        is_host = hasattr(entry, "host_regex")
        if getattr(entry, "path_regex", None) is None and not is_host:  # of another class, which may match any path
            route = AppRoute("/**", f"{place.pattern}/**", entry, place, matches, is_plain, str(UNMATCHED), entry)
            self.routes.append(route)
            return route
        names = {name for name, convertor in entry.param_convertors.items() if not _is_within_segment(convertor)}
        pattern = _REST if is_host else deepen(entry.path_format, names)
        is_mount = not hasattr(entry, "endpoint")
        route = AppRoute(
            "/**" if is_host else _shape(pattern, entry.path_regex),
            place.pattern + pattern,
            entry,
            place,
            matches,
            is_plain,
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
        below = RouterPlace(route.pattern.removesuffix(_REST), route.parameters, route.place.above, name)
        return self._read_router(owner, below, replace(NO_ROUTE, target=entry.app))


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
    for route in getattr(router, "_iter_low_priority_routes", tuple)():  # they serve files where no route matches
        yield route, route


def _matches_of(entry: Any, made: Any) -> tuple[Callable[[Scope], tuple[Any, Scope]], bool]:
    """Return a function that asks a route whether it matches, and whether it is the framework's own."""
    asked = made if getattr(entry, "original_route", None) is made else entry  # included, of FastAPI's class
    is_plain = is_of_framework(next(cls for cls in type(asked).__mro__ if "matches" in vars(cls)))
    if is_plain or asked is entry:
        return entry.matches, is_plain
    context = {"effective_route_context": entry}
    return lambda scope: made.matches({**scope, "fastapi": {**scope.get("fastapi", {}), **context}}), False


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


def _read_marks(routes: list[AppRoute]) -> None:
    """Read the marks of the views, and of all that is called before them, and name the views."""
    names = ViewNames()
    registered = {id(form) for route in routes for form in _forms_of(route.target)}
    for route in routes:
        target: Any = route.target or route
        route.function = names.name(inspect.unwrap(target), route.name or route.endpoint)
        route.views = ViewMarksByMethod(_marked_view(route.target, registered), route.calls)
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


def _forms_of(endpoint: Any) -> Iterator[object]:
    """Yield an endpoint and the functions that its decorators wrap."""
    while endpoint is not None:
        yield endpoint
        endpoint = getattr(endpoint, "__wrapped__", None)


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
