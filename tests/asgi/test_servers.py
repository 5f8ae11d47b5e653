"""Real servers: uvicorn and gunicorn on a loopback port, uvicorn on a Unix socket, and clients over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from http_servers import connected, free_port, running, say, status
from served_apps import FILE

pytestmark = pytest.mark.slow

ENDS = b"\r\n\r\n"


@pytest.fixture(scope="module")
def uvicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """uvicorn's own reading of proxy headers is off: it is the middleware's that is tried."""
    port = free_port()
    options = ("--port", str(port), "--no-proxy-headers", "--log-level", "warning")
    with running(tmp_path_factory.mktemp("uvicorn") / "log", port, "uvicorn", "served_apps:asgi", *options):
        yield port


@pytest.fixture(scope="module")
def gunicorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    options = ("--bind", f"127.0.0.1:{port}", "--worker-class", "gthread", "--threads", "24", "--log-level", "warning")
    with running(tmp_path_factory.mktemp("gunicorn") / "log", port, "gunicorn", *options, "served_apps:wsgi"):
        yield port


@pytest.fixture(params=["uvicorn", "gunicorn"])
def port(request: pytest.FixtureRequest) -> int:
    found: int = request.getfixturevalue(request.param)
    return found


def test_a_client_that_forges_headers_is_rejected_all_the_same(port: int) -> None:
    """Over one connection, another address in every request: three pass, the fourth is told when to come again."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/plain") as client:
        answers = [
            client.get("/page", headers={"x-forwarded-for": f"198.51.100.{i}", "forwarded": f"for=198.51.100.{i}"})
            for i in range(4)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    rejected = answers[3]
    assert json.loads(rejected.text)["violated-policies"] == ["page"]
    assert 3590 <= int(rejected.headers["retry-after"]) <= 3600
    assert rejected.headers["cache-control"] == "no-store"


def test_behind_a_trusted_proxy_the_rightmost_address_counts(port: int) -> None:
    """Over two lines of the header, and at the end of 8 KB of forged addresses."""
    forged = ", ".join(["198.51.100.1"] * 570)
    lines = [
        ["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 203.0.113.1"],
        ["X-Forwarded-For: 2.2.2.2", "x-forwarded-for: ::ffff:203.0.113.1"],
        [f"X-Forwarded-For: {forged}, 203.0.113.1"],
        ["X-Forwarded-For: 203.0.113.1"],
        ["X-Forwarded-For: 203.0.113.1, 203.0.113.2"],
    ]
    assert len(forged) > 7900
    assert [status(port, "GET /behind/page", *headers) for headers in lines] == [200, 200, 200, 429, 200]


def test_a_rejected_head_has_no_body_and_keeps_the_connection(port: int) -> None:
    """Two requests on one connection: after a HEAD that was rejected the next answer starts where it should."""
    who = "X-Forwarded-For: 203.0.113.3"
    assert [status(port, "GET /behind/page", who) for _ in range(3)] == [200] * 3
    head = f"HEAD /behind/page HTTP/1.1\nHost: x\n{who}\n\n"
    get = f"GET /behind/page HTTP/1.1\nHost: x\n{who}\nConnection: close\n\n"
    first, second, body = say(port, head + get).split(ENDS)
    assert first.startswith(b"HTTP/1.1 429")
    assert second.startswith(b"HTTP/1.1 429")
    assert json.loads(body)["status"] == 429
    lengths = [
        header for part in (first, second) for header in part.lower().split(b"\r\n") if b"content-length" in header
    ]
    assert lengths == [b"content-length: %d" % len(body)] * 2


def test_a_rejected_upload_is_answered_without_being_read(port: int) -> None:
    """A POST whose body never comes whole is rejected by its head alone."""
    who = "X-Forwarded-For: 203.0.113.4"
    assert [status(port, "POST /behind/page", who, "Content-Length: 0") for _ in range(3)] == [200] * 3
    with connected(port) as sock:
        head = f"POST /behind/page HTTP/1.1\r\nHost: x\r\n{who}\r\nContent-Length: 1000000\r\n\r\nstart"
        sock.sendall(head.encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 429")


def test_chunks_come_as_they_are_made(port: int) -> None:
    """The first chunk is there while the application still waits to make the second."""
    base = f"http://127.0.0.1:{port}"
    with httpx.stream("GET", f"{base}/plain/stream", timeout=20) as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b"first"
        assert httpx.get(f"{base}/plain/release").text == "released"
        assert b"".join(chunks) == b"second"
        assert answer.headers["ratelimit"].startswith('"file";r=')


def test_a_storm_of_failing_logins_lets_three_through(port: int) -> None:
    """Twenty at once, of which each takes a while to fail: three reach the application."""
    with ThreadPoolExecutor(20) as pool:
        storm = [
            pool.submit(httpx.post, f"http://127.0.0.1:{port}/plain/login", timeout=20, trust_env=False)
            for _ in range(20)
        ]
    assert sorted(answer.result().status_code for answer in storm) == [401] * 3 + [429] * 17


def test_a_method_in_small_letters_is_no_way_around_a_rule(uvicorn: int) -> None:
    """uvicorn hands ``post`` on as it comes; gunicorn rejects it by itself."""
    who = "X-Forwarded-For: 203.0.113.5"
    assert [status(uvicorn, "post /behind/page", who) for _ in range(4)] == [405, 405, 405, 429]


def test_a_file_is_sent_by_the_server_itself(gunicorn: int) -> None:
    """The server still sees its own file wrapper, and the file arrives whole with our fields beside it."""
    answer = httpx.get(f"http://127.0.0.1:{gunicorn}/plain/file")
    assert answer.content == FILE.read_bytes()
    assert answer.headers["x-ratelimit-limit"] == "1000"


def test_clients_on_a_unix_socket(tmp_path: Path) -> None:
    """They have no address: not trusted they share one limit, trusted they are whom the proxy names."""
    path = str(tmp_path / "app.sock")
    with running(tmp_path / "log", path, "uvicorn", "served_apps:asgi", "--uds", path, "--log-level", "warning"):
        forged = [status(path, "GET /plain/page", f"X-Forwarded-For: 203.0.113.{i}") for i in range(4)]
        named = [status(path, "GET /behind/page", f"X-Forwarded-For: 1.1.1.{i}, 203.0.113.7") for i in range(4)]
        others = [status(path, "GET /behind/page", f"X-Forwarded-For: 203.0.113.{i}, unix:") for i in range(8, 12)]
    assert forged == named == [200, 200, 200, 429]
    assert others == [200] * 4
    assert "all such requests are counted together as ip 'unknown'" in (tmp_path / "log").read_text()
