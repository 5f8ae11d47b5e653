"""WebSocket clients of a real server see rejected handshakes and limits on messages."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.version import Version
from servers import Server, running
from uvicorn.config import WS_PROTOCOLS
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

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


# Up to uvicorn 0.52.0, a rejected handshake of this one has two lengths, which clients cannot read.
BROKEN = {"websockets-sansio"} if Version(uvicorn.__version__) < Version("0.52.1") else set()


OTHERS = sorted(WS_PROTOCOLS.keys() - {"auto", "none", "websockets"} - BROKEN)


@pytest.fixture(params=["websockets", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Run uvicorn with one of its WebSocket implementations."""
    (tmp_path / "sockets.py").write_text(PROGRAM)

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "--ws", request.param, "--port", str(port), "sockets:app"]

    with running(command, tmp_path) as started:
        yield started


def open_websocket(server: Server) -> Any:
    return connect(f"ws://127.0.0.1:{server.port}/ws", proxy=None, open_timeout=180)


def test_a_client_sees_the_reason_of_a_rejected_handshake(server: Server) -> None:
    """The accepted handshake has the remaining requests. The rejected one is a 429 with Retry-After."""
    with open_websocket(server) as accepted:
        assert accepted.response.headers["ratelimit-policy"] == '"handshakes";q=2;w=3600'
        assert accepted.response.headers["x-ratelimit-remaining"] == "1"
    with open_websocket(server):
        pass
    with pytest.raises(InvalidStatus) as rejected, open_websocket(server):
        pass
    response = rejected.value.response
    assert (response.status_code, response.headers["content-type"]) == (429, "application/problem+json")
    assert int(response.headers["retry-after"]) > 3000
    assert b"handshakes" in response.body


def test_excess_messages_close_the_connection(server: Server) -> None:
    """The client receives the responses to allowed messages and then the close code "try again later"."""
    with open_websocket(server) as socket:
        for text in "abc":
            socket.send(text)
        assert [socket.recv(30), socket.recv(30)] == ["a", "b"]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(30)
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "Too many requests")
