"""WebSocket connections without a server."""

import asyncio
import contextlib
from typing import Any

from calls import http_scope
from starlette.applications import Starlette
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.starlette import RateLimitMiddleware
from ratelimit_mw.testing import ManualClock

DENIAL = {"websocket.http.response": {}}


async def echo(websocket: Any) -> None:
    await websocket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.send_text(await websocket.receive_text())


def application(
    routes: list[BaseRoute] | Any, *rules: Rule, clock: Any = None, limiter: Limiter | None = None, **options: Any
) -> Starlette:
    """Return an application with these routes, or with one view at ``/ws``."""
    app = Starlette(routes=routes if isinstance(routes, list) else [WebSocketRoute("/ws", routes)])
    limiter = limiter or Limiter(rules, clock=clock or ManualClock(1_000_000.0))
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


async def aconnect(app: Any, path: str, said: list[Any], extensions: Any = None, **scope: Any) -> list[Any]:
    """Connect, send the messages, disconnect, and return all messages of the application."""
    incoming = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", "text": text} if isinstance(text, str) else text for text in said),
        {"type": "websocket.disconnect", "code": 1000},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        assert sent == [] or sent[-1]["type"] != "websocket.close", "nothing may come after the close"
        sent.append(message)

    whole = http_scope(type="websocket", path=path, scheme="ws", subprotocols=[], extensions=extensions, **scope)
    del whole["method"]
    await app(whole, receive, send)
    return sent


def connect(app: Any, path: str = "/ws", said: Any = (), extensions: Any = None, **scope: Any) -> list[Any]:
    return asyncio.run(aconnect(app, path, list(said), extensions, **scope))


def kinds(sent: list[Any]) -> list[Any]:
    """Return the sent messages in short form."""
    return [message.get("text", message.get("code", message["type"].rpartition(".")[2])) for message in sent]
