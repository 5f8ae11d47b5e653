"""The routes of the applications that a middleware serves: where a request goes, before the application is called.

A bounded dictionary keeps what the routers have found for a path.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Never

from ..errors import ConfigError
from ..http.limits import HttpLimiter
from ..http.routes import Route, ViewNames, marked_view, marks_by_method, registered_forms
from ..http.warnings import warn_at_start
from ..keys.parts import parameter
from ..rules.marks import NO_ROUTE, Destination
from .rejections import describe_limits, handle_rejections, has_handlers
from .request import ASGIRequest
from .router import RouteFound, RouteTable, application_behind, path_below, router_of, routers_in
from .types import Scope

_NOT_FOUND: Final = "not_found"  # the name of the default of a router, unless an application replaces it
_MAX_CACHED: Final = 10_000
_MAX_KEY: Final = 256


class RouteIndex:
    """The routes of an application or router, with those of its mounts. Raises ``ConfigError`` for marks out of place.

    ``is_outermost``: no other router is around it. ``served``: the application that the middleware serves.
    """

    def __init__(self, app: Any, is_outermost: bool, served: Any, owner: object) -> None:
        self.app = app
        self._is_outermost = is_outermost
        self.handler_app = served if has_handlers(served) else None
        """The application that the middleware serves, where it has error handlers of its own."""
        self._owner = owner  # requests find this index by its id, which another object could get if it ended
        self._root: str = getattr(app, "root_path", "")
        """The root path that FastAPI sets when it is called, instead of the server's."""
        self._table = RouteTable(app)
        all_routes = list(self._table.all_routes())
        self.tables = [self._table, *(route.below for route in all_routes if route.below is not None)]
        """The tables of all routers, each before those of the routers below it."""
        self.routes = [route for route in all_routes if route.below is None]
        """All with a view, or with an application that cannot be read."""
        self._by_host = any(route.is_host for route in all_routes)
        self._is_plain = all(route.is_plain for route in all_routes)
        self._read_marks()
        self._read = [(each, [*each.routes]) for table in self.tables for each in routers_in(table.router)]
        """Each router, with the routes that were read."""
        self._cached: dict[tuple[str, str, str, str], Destination] = {}

    def is_current(self) -> bool:
        """Return whether the routers still have the routes that were read, and no others."""
        for router, routes in self._read:  # noqa: SIM110 - half the time of all(), at each request
            if router.routes != routes:
                return False
        return True

    def find(self, request: ASGIRequest) -> Destination:
        """Return where a request goes."""
        if self._root and "app" not in request.native:
            request.native = {**request.native, "root_path": self._root}
        scope = request.native
        path = path_below(self._root_of(scope), scope["path"]) if scope.get("root_path") else scope["path"]
        host = next(iter(request.header_lines("host")), "") if self._by_host else ""
        key = scope["type"], scope["method"], path, host  # a client may send any method, even "websocket"
        match = self._cached.get(key)
        if match is None:
            match, _ = self._look_up(scope)
            if self._is_plain and sum(map(len, key)) <= _MAX_KEY:
                if len(self._cached) >= _MAX_CACHED:
                    self._cached.clear()
                self._cached[key] = match
        return match

    def params(self, request: ASGIRequest) -> dict[str, Any]:
        """Return the path parameters of a request after their conversion: "007" and "7" are one number."""
        match, params = self._look_up(request.native)
        return {name: parameter(match.convert(f"path:{name}", value)) for name, value in params.items()}

    def _look_up(self, scope: Scope) -> RouteFound:
        """Find the route of a request without the cache. Mounts around the middleware have changed its scope."""
        return self._table.find({**scope, "root_path": self._root_of(scope), "path_params": {}})

    def _root_of(self, scope: Scope) -> str:
        """Return the root path of the application; for the outermost one that of the server."""
        root: str = scope.get("root_path", "")
        return scope.get("app_root_path", root) if self._is_outermost else root

    def describe(self) -> Iterator[Route]:
        """Describe all routes in their order, for checks and commands."""
        yield from self.routes
        if any(getattr(table.router.default, "__name__", "") != _NOT_FOUND for table in self.tables):
            yield Route(NO_ROUTE, pattern="/**")

    def contains(self, app: object) -> bool:
        """Return whether the routes include those of another application."""
        return any(table.router is router_of(app) for table in self.tables)

    def _read_marks(self) -> None:
        """Read the marks of the views, and of all that is called before them, and name the views."""
        names = ViewNames()
        registered = registered_forms(route.target for route in self.routes)
        for route in self.routes:
            function = names.name(inspect.unwrap(route.target), route.to.view or route.endpoint)
            route.to = replace(route.to, function=function)
            route.marked = marks_by_method(marked_view(route.target, registered), route.calls)
            messages = [message for marks in route.marked.values() for message in marks.messages]
            if messages and not route.is_websocket:
                raise ConfigError(f"{route.endpoint} is not a WebSocket route", of=f"@messages on {messages[0].view}")


class Applications:
    """The routes of the applications that a middleware serves, nearly always one.

    A middleware in an application that is mounted uses the outer router, whose templates are whole.
    """

    def __init__(self, app: object, http_limiter: HttpLimiter) -> None:
        self._app = app
        self._http_limiter = http_limiter
        self._by_owner: dict[int, RouteIndex] = {}
        self.has_routes = True
        """False once an application without routes was found."""

    def match(self, request: ASGIRequest) -> None:
        """Find the route of a request, and set it on the request."""
        index = request.index = self.index_of(request.native)
        if index is not None:
            request.to = index.find(request)

    def index_of(self, scope: Scope) -> RouteIndex | None:
        """Return the index for a scope; None where there are no routes. Raises ``ConfigError`` for invalid marks."""
        owner = ("router" in scope and _outer_router(scope)) or scope.get("app")
        index = self._by_owner.get(id(owner))
        if index is not None and index.is_current():
            return index
        if self.has_routes:
            index = self._read(scope, owner)
            if index is None:
                self._http_limiter.adopt_no_routes()
                self.has_routes = False
            else:
                self._adopt(index)
                self._by_owner[id(owner)] = index
            warn_at_start(self._http_limiter)
        return index

    def _read(self, scope: Scope, owner: object) -> RouteIndex | None:
        """Read the routes at the start, and again when a router has others."""
        outermost = application_behind(_outer_router(scope))
        app = application_behind(scope.get("app")) or application_behind(self._app)
        for root, is_outermost in ((outermost, True), (app, outermost is None)):
            if root is not None:
                index = RouteIndex(root, is_outermost, app, owner)
                if app is None or index.contains(app):
                    return index
        return None

    def _adopt(self, index: RouteIndex) -> None:
        """Add the limits of all routes, and describe them in OpenAPI."""
        self._http_limiter.adopt(list(index.describe()), key=id(index.app))
        for app in {id(table.app): table.app for table in index.tables}.values():
            handle_rejections(app)
            if hasattr(app, "openapi_schema"):
                describe_limits(
                    app,
                    self._http_limiter,
                    [route for route in index.routes if route.table.app is app and not route.is_websocket],
                )


class BrokenApplications:
    """Takes the place of ``Applications`` after an error. It raises the error at the start, and at each request."""

    has_routes = True

    def __init__(self, error: Exception) -> None:
        self._error, self._traceback = error, error.__traceback__

    def index_of(self, scope: Any) -> Never:
        raise self._error.with_traceback(self._traceback)  # the traceback would otherwise grow with each raise

    match = index_of


def _outer_router(scope: Scope) -> Any:
    """Return the router of the application that the current one is mounted in; None outside a mount."""
    router = scope.get("router")
    return None if router is getattr(scope.get("app"), "router", None) else router
