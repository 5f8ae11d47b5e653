"""The routes of the applications that a middleware serves: where a request goes, before the application is called.

A bounded dictionary keeps what the routers have found for a path.
"""

from collections.abc import Mapping
from typing import Any, Final, Never

from ..http.limits import HttpLimiter, HttpLimits
from ..http.routes import check_parameters, check_routes
from ..http.warnings import warn_at_start
from ..keys.parts import parameter
from .rejections import describe_limits, handle_rejections, has_handlers
from .request import ASGIRequest
from .route_reader import RouteReader, application_behind
from .router import RouteFound, RouteMatch, path_below

_MAX_CACHED: Final = 10_000
_MAX_KEY: Final = 256


class RouteIndex:
    """The routes of an application or router, with those of its mounts. Raises ``ConfigError`` for marks out of place.

    ``is_outermost``: no other router is around it.
    """

    start: object = None
    """The router or application by which a request finds this index."""
    handling: Any = None
    """The application that the middleware serves, where it has error handlers of its own."""

    def __init__(self, app: Any, is_outermost: bool) -> None:
        self.app = app
        self._is_outermost = is_outermost
        self._root: str = getattr(app, "root_path", "")
        """The root path that FastAPI sets when it is called, instead of the server's."""
        self.reader = RouteReader(app)
        self._sizes = [(routes, len(routes)) for routes in self.reader.lists]
        self._cached: dict[tuple[str, str, str, str], RouteMatch] = {}

    def is_current(self) -> bool:
        """Return whether no list of routes has grown since they were read."""
        for routes, size in self._sizes:  # noqa: SIM110 - half the time of all(), at each request
            if len(routes) != size:
                return False
        return True

    def find(self, request: ASGIRequest) -> RouteMatch:
        """Return where a request goes."""
        if self._root and "app" not in request.native:
            request.native = {**request.native, "root_path": self._root}
        scope = request.native
        path = path_below(self._root_of(scope), scope["path"]) if scope.get("root_path") else scope["path"]
        host = next(iter(request.header_lines("host")), "") if self.reader.by_host else ""
        key = scope["type"], scope["method"], path, host  # a client may send any method, even "websocket"
        match = self._cached.get(key)
        if match is None:
            match, _, is_cacheable = self._look_up(scope)
            if is_cacheable and sum(map(len, key)) <= _MAX_KEY:
                if len(self._cached) >= _MAX_CACHED:
                    self._cached.clear()
                self._cached[key] = match
        return match

    def params(self, request: ASGIRequest) -> dict[str, Any]:
        """Return the path parameters of a request after their conversion: "007" and "7" are one number."""
        match, params, _ = self._look_up(request.native)
        return {name: parameter(match.conversions.apply(f"path:{name}", value)) for name, value in params.items()}

    def _look_up(self, scope: Mapping[str, Any]) -> RouteFound:
        """Find the route of a request without the cache. Mounts around the middleware have changed its scope."""
        return self.reader.table.find({**scope, "root_path": self._root_of(scope), "path_params": {}})

    def _root_of(self, scope: Mapping[str, Any]) -> str:
        """Return the root path of the application; for the outermost one that of the server."""
        root: str = scope.get("root_path", "")
        return scope.get("app_root_path", root) if self._is_outermost else root


class Applications:
    """The routes of the applications that a middleware serves, nearly always one.

    A middleware in an application that is mounted uses the outer router, whose templates are whole.
    """

    def __init__(self, app: object, http_limiter: HttpLimiter) -> None:
        self._app = app
        self._http_limiter = http_limiter
        self._by_start: dict[int, RouteIndex] = {}
        self.has_routes = True
        """False once an application without routes was found."""

    def match(self, request: ASGIRequest) -> None:
        """Find the route of a request, and set it on the request."""
        index = request.index = self.index_of(request.native)
        if index is not None:
            match = request.match = index.find(request)
            request.endpoint = match.endpoint

    def index_of(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        """Return the index for a scope; None where there are no routes. Raises ``ConfigError`` for invalid marks."""
        start = ("router" in scope and _outer_router(scope)) or scope.get("app") or self._app
        index = self._by_start.get(id(start))
        if index is not None and index.is_current():
            return index
        if self.has_routes:
            index = self._read(scope)
            if index is None:
                self._http_limiter.adopt_no_routes()
                self.has_routes = False
            else:
                self._adopt(index)
                index.start, self._by_start[id(start)] = start, index
            warn_at_start(self._http_limiter)
        return index

    def _read(self, scope: Mapping[str, Any]) -> RouteIndex | None:
        """Read the routes at the start, and again when a list has grown."""
        outermost = application_behind(_outer_router(scope))
        app = application_behind(scope.get("app")) or application_behind(self._app)
        for root, is_outermost in ((outermost, True), (app, outermost is None)):
            if root is not None:
                index = RouteIndex(root, is_outermost)
                if app is None or index.reader.contains(app):
                    index.handling = app if has_handlers(app) else None
                    return index
        return None

    def _adopt(self, index: RouteIndex) -> None:
        """Add the limits of all routes, and describe them in OpenAPI."""
        reader = index.reader
        views = [marks for route in reader.routes for marks in route.views.all()]
        routes = list(reader.describe())

        def check(limits: HttpLimits) -> None:
            check_parameters(routes, limits.rules)
            check_routes(routes, limits.rules, limits.functions.may_provide)

        self._http_limiter.adopt(views, check, key=id(index.app))
        for app in {id(app): app for app in reader.owners}.values():
            handle_rejections(app)
            if hasattr(app, "openapi_schema"):
                describe_limits(app, self._http_limiter, [route for route in reader.routes if route.place.app is app])


class BrokenApplications:
    """Takes the place of ``Applications`` after an error. It raises the error at the start, and at each request."""

    has_routes = True

    def __init__(self, error: Exception) -> None:
        self._error, self._traceback = error, error.__traceback__

    def index_of(self, scope: Any) -> Never:
        raise self._error.with_traceback(self._traceback)  # the traceback would otherwise grow with each raise

    match = index_of


def _outer_router(scope: Mapping[str, Any]) -> Any:
    """Return the router of the application that the current one is mounted in; None outside a mount."""
    router = scope.get("router")
    return None if router is getattr(scope.get("app"), "router", None) else router
