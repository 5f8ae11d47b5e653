"""Rules by the body behind real servers, and clients that write their bodies by hand."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from http_servers import connected, free_port, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uvicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    options = ("--port", str(port), "--log-level", "warning", "--lifespan", "off")
    with running(tmp_path_factory.mktemp("uvicorn") / "log", port, "uvicorn", "served_bodies:asgi", *options):
        yield port


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    options = ("--bind", f"127.0.0.1:{port}", "--worker-class", "gthread", "--threads", "4", "--log-level", "warning")
    with running(tmp_path_factory.mktemp("gunicorn") / "log", port, "gunicorn", *options, "served_bodies:wsgi"):
        yield port


@pytest.fixture(params=["uvicorn", "gunicorn"])
def port(request: pytest.FixtureRequest) -> int:
    found: int = request.getfixturevalue(request.param)
    return found


def head(path: str, *headers: str) -> bytes:
    """Each path has its own counts."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode()


def with_length(path: str, body: bytes) -> bytes:
    return head(path, f"Content-Length: {len(body)}") + body


def in_chunks(path: str, *parts: bytes) -> bytes:
    chunks = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (*parts, b"")]
    return head(path, "Transfer-Encoding: chunked") + b"".join(chunks)


class Answers:
    """The answers on one connection, one after another."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._sock.close()

    def say(self, data: bytes) -> Answers:
        self._sock.sendall(data)
        return self

    def next(self) -> tuple[int, bytes]:
        status = int(self._file.readline().split()[1])
        length = 0
        while line := self._file.readline().strip():
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        return status, self._file.read(length)


def talk(port: int) -> Answers:
    return Answers(connected(port))


ANN, BOB = b'{"email": "ann@x.example"}', b'{"email": "bob@x.example"}'


def test_bodies_are_counted_and_handed_on(port: int) -> None:
    """With a length and in chunks, on one connection: what was read arrives, and the next request starts in place."""
    with talk(port) as client:
        assert client.say(in_chunks("/", ANN[:5], ANN[5:6], ANN[6:])).next() == (200, ANN)
        assert client.say(with_length("/", ANN)).next()[0] == 429
        assert client.say(with_length("/", BOB)).next() == (200, BOB)
        assert client.say(in_chunks("/", BOB)).next()[0] == 429
        assert client.say(with_length("/", b"{}")).next() == (200, b"{}")


def test_a_long_body_arrives_whole(port: int) -> None:
    """Over the bound, in chunks and announced: the application has every byte, and one count holds for all of them."""
    long = ANN + b" " * 200_000
    with talk(port) as client:
        assert client.say(in_chunks("/long", long[:1000], long[1000:90_000], long[90_000:])).next() == (200, long)
    with talk(port) as client:
        assert client.say(with_length("/long", long)).next()[0] == 429
    with talk(port) as client:
        assert client.say(with_length("/longer", long)).next() == (200, long)


def test_a_client_that_waits_to_be_asked_is_asked(port: int) -> None:
    """``Expect: 100-continue``: where the rule needs the body, the client is told to send it."""
    with talk(port) as client:
        client.say(head("/expect", f"Content-Length: {len(ANN)}", "Expect: 100-continue"))
        assert client.next() == (100, b"")
        assert client.say(ANN).next() == (200, ANN)


def test_a_rejected_upload_is_never_asked_for(uvicorn: int) -> None:
    """A body that is announced as too long and rejected is not sent for: the answer comes instead of "100 Continue"."""
    statuses = []
    for _ in range(2):
        with talk(uvicorn) as client:
            client.say(head("/upload", "Content-Length: 5000", "Expect: 100-continue"))
            statuses.append(client.next()[0])
    assert statuses == [100, 429]


def test_a_slow_body_arrives_after_it_was_given_up(uvicorn: int) -> None:
    """The second half comes after ``body_timeout``: nothing of it is lost, and its sender's own count is untouched."""
    with talk(uvicorn) as client:
        client.say(head("/slow", f"Content-Length: {len(ANN)}") + ANN[:10])
        time.sleep(0.6)
        assert client.say(ANN[10:]).next() == (200, ANN)
    with talk(uvicorn) as client:
        assert client.say(with_length("/slow", ANN)).next() == (200, ANN)
