"""Starlette behind a real server: what a client sees of refused handshakes and of messages too many."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server, running
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

PROGRAM = """
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect
from ratelimit_mw.starlette import RateLimitMiddleware, limit, messages

@limit("2/hour", name="handshakes", algorithm="sliding-window-log")
@messages("2/hour", name="messages", algorithm="sliding-window-log")
async def echo(websocket):
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass

app = Starlette(routes=[WebSocketRoute("/ws", echo)])
app.add_middleware(RateLimitMiddleware, settings={})
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "sockets.py").write_text(PROGRAM)

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "--ws", "websockets-sansio", "--port", str(port), "sockets:app"]

    with running(command, tmp_path) as started:
        yield started


def opened(server: Server) -> Any:
    return connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, open_timeout=30)


def test_a_client_is_told_why_its_handshake_was_refused(server: Server) -> None:
    """The accepted handshake says how much is left; the refused one is a 429 that says when to come back."""
    with opened(server) as accepted:
        assert accepted.response.headers["ratelimit-policy"] == '"handshakes";q=2;w=3600'
        assert accepted.response.headers["x-ratelimit-remaining"] == "1"
    with opened(server):
        pass
    with pytest.raises(InvalidStatus) as refused, opened(server):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/problem+json")
    assert int(answer.headers["retry-after"]) > 3000
    assert b"handshakes" in answer.body


def test_a_connection_with_messages_too_many_is_closed(server: Server) -> None:
    """The client hears what was allowed, and then that it should try again later."""
    with opened(server) as socket:
        for text in "abc":
            socket.send(text)
        assert [socket.recv(30), socket.recv(30)] == ["a", "b"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(30)
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "Too many requests")
