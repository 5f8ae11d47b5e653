"""WebSocket clients of a real server see rejected handshakes and limits on messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
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


ROUTER = """
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, messages

rooms = APIRouter(dependencies=[Depends(RateLimit("1/hour", name="rooms", key=["path:room"]))])

@rooms.websocket("/rooms/{room}")
@messages("2/hour", name="messages", over="drop", algorithm="sliding-window-log")
async def room(websocket: WebSocket, room: str):
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(room + text)

app = FastAPI()
app.include_router(rooms, prefix="/v1")
app.get("/left")(lambda: "left")
rules = [{"name": "all", "limits": "5/hour", "algorithm": "sliding-window-log"}]
app.add_middleware(RateLimitMiddleware, settings={"rules": rules})
"""


def run_uvicorn(program: str, protocol: str, folder: Path) -> Any:
    """Run uvicorn with one of its WebSocket implementations."""
    (folder / "sockets.py").write_text(program)

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "uvicorn", "--ws", protocol, "--port", str(port), "sockets:app"]

    return running(command, folder)


# Up to uvicorn 0.52.0, a rejected handshake of this one has two lengths, which clients cannot read.
BROKEN = {"websockets-sansio"} if Version(uvicorn.__version__) < Version("0.52.1") else set()


OTHERS = sorted(WS_PROTOCOLS.keys() - {"auto", "none", "websockets"} - BROKEN)


@pytest.fixture(params=["websockets", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(protocol: str, tmp_path: Path) -> Iterator[Server]:
    with run_uvicorn(PROGRAM, protocol, tmp_path) as started:
        yield started


def open_websocket(server: Server, path: str = "/ws") -> Any:
    return connect(f"ws://127.0.0.1:{server.port}{path}", proxy=None, open_timeout=180)


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


def test_websockets_of_a_fastapi_router_share_counts_with_requests(protocol: str, tmp_path: Path) -> None:
    """Handshakes consume the router's limit by room, and the file's limit, which HTTP requests consume, too."""
    with run_uvicorn(ROUTER, protocol, tmp_path) as server:
        with open_websocket(server, "/v1/rooms/a") as socket:
            for text in "123":
                socket.send(text)
            assert [socket.recv(30), socket.recv(30)] == ["a1", "a2"]
            socket.close()
            with pytest.raises(ConnectionClosed):
                socket.recv(30)  # The excess message was dropped without a response.
        with open_websocket(server, "/v1/rooms/b"):
            pass
        with pytest.raises(InvalidStatus) as rejected, open_websocket(server, "/v1/rooms/a"):
            pass
        response = httpx.get(f"http://127.0.0.1:{server.port}/left", trust_env=False, timeout=60)
    assert rejected.value.response.status_code == 429
    assert b'"violated-policies": ["rooms"]' in rejected.value.response.body
    assert response.headers["x-ratelimit-remaining"] == "2"  # Two handshakes and this request, of five.
