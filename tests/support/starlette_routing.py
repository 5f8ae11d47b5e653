"""The route of a path, by the index of routes and by the router of Starlette."""

from __future__ import annotations

from typing import Any

from calls import http_scope

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.routes import RouteIndex


def index_of(app: Any) -> RouteIndex:
    index = RateLimitMiddleware(app, settings={}).routes.index_of({})
    assert index is not None
    return index


async def went_to(app: Any, path: str, method: str, kind: str = "http", **more: Any) -> dict[str, Any]:
    """Return the scope after Starlette's own router has handled it."""
    scope: Any = http_scope(type=kind, path=path, method=method, **more)

    async def receive() -> Any:
        return {"type": f"{kind}.{'request' if kind == 'http' else 'connect'}"}

    async def send(message: Any) -> None:
        pass

    await app(scope, receive, send)
    return scope
