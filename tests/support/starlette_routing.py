"""The route of a path, by the index of routes and by the router of Starlette."""

from typing import Any

from calls import http_scope

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.routes import RouteIndex
from ratelimit_mw.rules.marks import Destination
from ratelimit_mw.rules.match import METHODS


def index_of(app: Any) -> RouteIndex:
    index = RateLimitMiddleware(app, settings={}).routes.index_of({})
    assert index is not None
    return index


def target_of(index: RouteIndex, to: Destination) -> Any:
    """Return the view or the application of a destination; None where no route matches."""
    methods = (None, "", *METHODS)
    return next((each.target for each in index.routes for method in methods if each.destination(method) is to), None)


def known(index: RouteIndex, endpoint: Any) -> Any:
    """Return the endpoint that Starlette calls; None for an application inside, which then finds no route."""
    return endpoint if any(route.target is endpoint for route in index.routes) else None


async def went_to(app: Any, path: str, method: str, kind: str = "http", **more: Any) -> dict[str, Any]:
    """Return the scope after Starlette's own router has handled it."""
    scope: Any = http_scope(type=kind, path=path, method=method, **more)

    async def receive() -> Any:
        return {"type": f"{kind}.{'request' if kind == 'http' else 'connect'}"}

    async def send(message: Any) -> None:
        pass

    await app(scope, receive, send)
    return scope
