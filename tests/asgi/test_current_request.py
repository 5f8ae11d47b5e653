"""The request that a middleware handles is current in its task, and no longer."""

import asyncio
from typing import Any

import pytest
from asgi_checker import Receive, Scope, Send
from calls import BODY, START, aask, limited
from starlette.routing import WebSocketRoute
from tables import each
from websocket_calls import aconnect, application

from ratelimit_mw.rules.guard import current


@each("fails", [False, True])
def test_a_request_is_current_until_its_end(fails: bool) -> None:
    """The request of the caller in the same task is current again, even after an error."""
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(current.get())
        if fails:
            raise ValueError("of the application")
        await send(START)
        await send(BODY)

    async def calls() -> None:
        for _ in range(2):
            if fails:
                with pytest.raises(ValueError, match="of the application"):
                    await aask(limited(app))
            else:
                await aask(limited(app))
            assert current.get() is None

    asyncio.run(calls())
    assert len({id(request) for request in found} - {id(None)}) == 2


def test_a_websocket_is_current_until_its_end() -> None:
    found = []

    async def view(websocket: Any) -> None:
        found.append(current.get())
        await websocket.accept()

    async def calls() -> None:
        await aconnect(application([WebSocketRoute("/ws", view)]), "/ws", [])
        assert current.get() is None

    asyncio.run(calls())
    assert found != [None]
