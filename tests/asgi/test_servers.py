"""The middleware behind uvicorn and gunicorn, on a loopback port and on a Unix socket: clients, responses, bodies."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from http_servers import connected, running, say, served_port, status
from served_apps import FILE
from servers import PATIENCE

pytestmark = pytest.mark.slow

ENDS = b"\r\n\r\n"


@pytest.fixture(scope="module")
def uvicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start uvicorn without its own proxy headers, so that the middleware reads them."""
    with served_port(
        tmp_path_factory.mktemp("server") / "log",
        "uvicorn served_apps:asgi --no-proxy-headers --http h11 --log-level warning",
    ) as port:
        yield port


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("server") / "log"
    with served_port(log, "gunicorn served_apps:wsgi --threads 24 --log-level warning") as port:
        yield port


@pytest.fixture(params=["uvicorn", "gunicorn"])
def port(request: pytest.FixtureRequest) -> int:
    port: int = request.getfixturevalue(request.param)
    return port


def test_a_rejected_head_has_no_body_and_keeps_the_connection(port: int) -> None:
    """The next response on the connection starts in the right place after a rejected HEAD."""
    forged = "X-Forwarded-For: 203.0.113.3"
    assert [status(port, "GET /behind/page", forged) for _ in range(3)] == [200] * 3
    head = f"HEAD /behind/page HTTP/1.1\nHost: x\n{forged}\n\n"
    get = f"GET /behind/page HTTP/1.1\nHost: x\n{forged}\nConnection: close\n\n"
    first, second, body = say(port, head + get).split(ENDS)
    assert first.startswith(b"HTTP/1.1 429")
    assert second.startswith(b"HTTP/1.1 429")
    assert json.loads(body)["status"] == 429
    lengths = [
        header for part in (first, second) for header in part.lower().split(b"\r\n") if b"content-length" in header
    ]
    assert lengths == [b"content-length: %d" % len(body)] * 2


def test_a_rejected_upload_gets_a_response_before_its_body(port: int) -> None:
    """The server rejects a POST by its headers, although its body never arrives completely."""
    forged = "X-Forwarded-For: 203.0.113.4"
    assert [status(port, "POST /behind/page", forged, "Content-Length: 0") for _ in range(3)] == [200] * 3
    with connected(port) as sock:
        head = f"POST /behind/page HTTP/1.1\r\nHost: x\r\n{forged}\r\nContent-Length: 1000000\r\n\r\nstart"
        sock.sendall(head.encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 429")


def test_chunks_arrive_as_they_are_made(port: int) -> None:
    """The first chunk arrives before the application makes the second."""
    base = f"http://127.0.0.1:{port}"
    with httpx.stream("GET", f"{base}/plain/stream", timeout=PATIENCE) as response:
        chunks = response.iter_raw()
        assert next(chunks) == b"first"
        assert httpx.get(f"{base}/plain/release", timeout=60).text == "released"
        assert b"".join(chunks) == b"second"
        assert response.headers["ratelimit"].startswith('"file";r=')


def test_the_server_sends_a_file_itself(gunicorn: int) -> None:
    """The server receives its own file wrapper, and the file arrives whole with the rate limit headers."""
    response = httpx.get(f"http://127.0.0.1:{gunicorn}/plain/file", timeout=60)
    assert response.content == FILE.read_bytes()
    assert response.headers["x-ratelimit-limit"] == "1000"


def test_limits_on_a_unix_socket(tmp_path: Path) -> None:
    """Untrusted clients share one limit. With "unix" trusted, the proxy names the client."""
    path = str(tmp_path / "app.sock")
    with running(tmp_path / "log", path, "uvicorn", "served_apps:asgi", "--uds", path, "--log-level", "warning"):
        forged = [status(path, "GET /plain/page", f"X-Forwarded-For: 203.0.113.{i}") for i in range(4)]
        named = [status(path, "GET /behind/page", f"X-Forwarded-For: 1.1.1.{i}, 203.0.113.7") for i in range(4)]
        others = [status(path, "GET /behind/page", f"X-Forwarded-For: 203.0.113.{i}, unix:") for i in range(8, 12)]
    assert forged == named == [200, 200, 200, 429]
    assert others == [200] * 4
    assert "all such requests are counted together as ip 'unknown'" in (tmp_path / "log").read_text()


# -- rules on body fields, and clients that write raw bodies -----------------------------------------------------


def head(path: str, *headers: str) -> bytes:
    """Each path has its own counts."""
    lines = [f"POST /bodies{path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


def with_length(path: str, body: bytes) -> bytes:
    return head(path, f"Content-Length: {len(body)}") + body


def in_chunks(path: str, *parts: bytes) -> bytes:
    chunks = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (*parts, b"")]
    return head(path, "Transfer-Encoding: chunked") + b"".join(chunks)


class Responses:
    """Read the responses on one connection in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Responses:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._sock.close()

    def say(self, data: bytes) -> Responses:
        self._sock.sendall(data)
        return self

    def next(self) -> tuple[int, bytes]:
        status = int(self._file.readline().split()[1])
        length = 0
        while line := self._file.readline().strip():
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, self._file.read(length)


def talk(port: int) -> Responses:
    return Responses(connected(port))


ANN, BOB = b'{"email": "ann@x.example"}', b'{"email": "bob@x.example"}'


def test_bodies_are_counted_and_passed_on(port: int) -> None:
    """Bodies with a length and in chunks arrive whole, and the next request on the connection starts correctly."""
    with talk(port) as client:
        assert client.say(in_chunks("/", ANN[:5], ANN[5:6], ANN[6:])).next() == (200, ANN)
        assert client.say(with_length("/", ANN)).next()[0] == 429
        assert client.say(with_length("/", BOB)).next() == (200, BOB)
        assert client.say(in_chunks("/", BOB)).next()[0] == 429
        assert client.say(with_length("/", b"{}")).next() == (200, b"{}")


def test_a_long_body_arrives_whole(port: int) -> None:
    """The application receives every byte of an oversized body. All oversized bodies share one count."""
    long = ANN + b" " * 200_000
    with talk(port) as client:
        assert client.say(in_chunks("/long", long[:1000], long[1000:90_000], long[90_000:])).next() == (200, long)
    with talk(port) as client:
        assert client.say(with_length("/long", long)).next()[0] == 429
    with talk(port) as client:
        assert client.say(with_length("/longer", long)).next() == (200, long)


def test_a_client_that_expects_100_continue_receives_it(port: int) -> None:
    """When a rule needs the body, a client with ``Expect: 100-continue`` receives "100 Continue"."""
    with talk(port) as client:
        client.say(head("/expect", f"Content-Length: {len(ANN)}", "Expect: 100-continue"))
        assert client.next() == (100, b"")
        assert client.say(ANN).next() == (200, ANN)


def test_a_slow_body_arrives_after_its_timeout(uvicorn: int) -> None:
    """The second half arrives after ``body_timeout``. No byte is lost, and the sender's own count does not change."""
    with talk(uvicorn) as client:
        client.say(head("/slow", f"Content-Length: {len(ANN)}") + ANN[:10])
        time.sleep(3)  # ten times the timeout: also a server that is late must have begun to read
        assert client.say(ANN[10:]).next() == (200, ANN)
    with talk(uvicorn) as client:
        assert client.say(with_length("/slow", ANN)).next() == (200, ANN)
