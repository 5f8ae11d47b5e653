"""The dashboard as an ASGI application, for Starlette, FastAPI and every other ASGI framework."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import isawaitable
from typing import Final

from ..asgi.request import ASGIApp, ASGIRequest, Receive, Scope, Send
from ..asgi.routes.tree import path_below
from ..errors import ConfigError, MissingMiddlewareError
from ..http.admission import Admission
from ..http.rules import DECIDED
from ..limiter.limiter import Limiter
from ..rules.marks import OWN_PAGE
from .access import Allow, ask, check_arguments, is_open
from .core import respond
from .response import PageResponse, redirect_into

_CLOSED: Final = 1008


def dashboard(limiter: Limiter | None = None, *, allow: Allow | None = None) -> ASGIApp:
    """Return the dashboard of a limiter as an ASGI application to mount.

    Args:
        limiter: The limiter. Default: that of the ``RateLimitMiddleware`` which handles the request.
        allow: Your function of the request, sync or async, which returns whether the client may see the dashboard.
            Without it, a browser asks for the password that the log has at the start.

    Returns:
        The application.

    Raises:
        ConfigError: An argument is invalid.

    Example:
        app.mount("/ratelimit", dashboard(limiter, allow=is_staff))
    """
    check_arguments(limiter, allow)
    return ASGIDashboard(limiter, allow)


class ASGIDashboard:
    """An ASGI application without state of its own."""

    __ratelimit_mw__ = OWN_PAGE

    def __init__(self, limiter: Limiter | None, allow: Allow | None) -> None:
        self._limiter = limiter
        self._allow = allow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _CLOSED})
        elif scope["type"] == "http":
            await _send(send, await self._respond(scope))
        else:
            raise ConfigError("the dashboard has no lifespan. Mount it in your application")

    async def _respond(self, scope: Scope) -> PageResponse:
        request, path = ASGIRequest(scope), path_in_mount(scope)
        if not path:
            return redirect_into(scope["path"], request.query_string)
        answer = ask(request, self._allow)
        opens = is_open(await answer if isawaitable(answer) else answer, scope)
        limiter = self._limiter or _limiter_of(scope)
        has_check = self._allow is not None
        return await asyncio.to_thread(
            respond, limiter, request.method, path[1:], request.query_string, opens, has_check
        )


def path_in_mount(scope: Scope) -> str:
    """Return the path below the mount: "" for the mount without its slash.

    ``root_path`` is the prefix of the server, then that of the mount. A path need not start with the former.

    >>> path_in_mount({"path": "/api/limits/", "root_path": "/api/limits", "app_root_path": "/api"})
    '/'
    >>> path_in_mount({"path": "/limits/data.json", "root_path": "/api/limits", "app_root_path": "/api"})
    '/data.json'
    """
    root, path = scope.get("root_path", ""), scope["path"]
    below: str = path_below(root, path)
    return path_below(root.removeprefix(scope.get("app_root_path", "")), path) if below == path else below


def _limiter_of(scope: Scope) -> Limiter:
    """Return the limiter of the innermost middleware that handles a request."""
    admissions: Mapping[object, Admission] = scope.get(DECIDED, {})
    if not admissions:
        raise MissingMiddlewareError("dashboard()", "shows the limiter of the middleware")
    return list(admissions.values())[-1].limits.limiter


async def _send(send: Send, response: PageResponse) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
