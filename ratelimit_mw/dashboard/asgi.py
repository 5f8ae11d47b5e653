"""The dashboard as an ASGI application, for Starlette, FastAPI and every other ASGI framework."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Final

from ..asgi.body import ReadAhead
from ..asgi.request import BODY, ASGIRequest
from ..asgi.router import path_below
from ..asgi.types import Receive, Scope, Send
from ..errors import ConfigError, MissingMiddlewareError
from ..http.admission import ADMISSION, Admission
from ..limiter.limiter import Limiter
from ..rules.marks import OWN_PAGE
from .changes import MAX_FORM
from .core import Mount, PageResponse, dashboard_by, is_open, redirect_into, respond

_CLOSED: Final = 1008


class ASGIDashboard:
    """An ASGI application without state of its own."""

    __ratelimit_mw__ = OWN_PAGE

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _CLOSED})
        elif scope["type"] == "http":
            await _send(send, await self._respond(scope, receive))
        else:
            raise ConfigError("the dashboard has no lifespan. Mount it in your application")

    async def _respond(self, scope: Scope, receive: Receive) -> PageResponse:
        mount, request, path = self._mount, ASGIRequest(scope), path_in_mount(scope)
        if not path:
            return redirect_into(scope["path"], request.query_string)
        answer = mount.ask(request)
        opens = is_open(await answer if isawaitable(answer) else answer, scope)
        limiter = mount.limiter or _limiter_of(scope)
        if opens and request.method == "POST":
            ahead = ReadAhead(receive, MAX_FORM, limiter.settings.body_timeout)
            request.native = {**scope, BODY: await ahead.read()}
            ahead.close()
        return await asyncio.to_thread(respond, mount, limiter, request, path[1:], opens)


dashboard: Final = dashboard_by(ASGIDashboard)


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
    innermost: Admission | None = scope.get(ADMISSION)
    if innermost is None:
        raise MissingMiddlewareError("dashboard()", "shows the limiter of the middleware")
    return innermost.limits.limiter


async def _send(send: Send, response: PageResponse) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
