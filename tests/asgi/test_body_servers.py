"""Rules on body fields behind real servers, with clients that write raw bodies."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from http_servers import connected, served_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uvicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served_port(tmp_path_factory, "uvicorn served_bodies:asgi --log-level warning --lifespan off") as port:
        yield port


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served_port(tmp_path_factory, "gunicorn served_bodies:wsgi --threads 4 --log-level warning") as port:
        yield port


@pytest.fixture(params=["uvicorn", "gunicorn"])
def port(request: pytest.FixtureRequest) -> int:
    port: int = request.getfixturevalue(request.param)
    return port


def head(path: str, *headers: str) -> bytes:
    """Each path has its own counts."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
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


def test_a_rejected_upload_gets_no_100_continue(uvicorn: int) -> None:
    """The rejection of a body that is announced as too long arrives instead of "100 Continue"."""
    statuses = []
    for _ in range(2):
        with talk(uvicorn) as client:
            client.say(head("/upload", "Content-Length: 5000", "Expect: 100-continue"))
            statuses.append(client.next()[0])
    assert statuses == [100, 429]


def test_a_slow_body_arrives_after_its_timeout(uvicorn: int) -> None:
    """The second half arrives after ``body_timeout``. No byte is lost, and the sender's own count does not change."""
    with talk(uvicorn) as client:
        client.say(head("/slow", f"Content-Length: {len(ANN)}") + ANN[:10])
        time.sleep(3)  # ten times the timeout: also a server that is late must have begun to read
        assert client.say(ANN[10:]).next() == (200, ANN)
    with talk(uvicorn) as client:
        assert client.say(with_length("/slow", ANN)).next() == (200, ANN)
