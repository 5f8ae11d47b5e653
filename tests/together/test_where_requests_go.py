"""However a client writes the path of a view, a real server and its framework never pass more than the rule allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_servers import free_port, running, say

pytestmark = pytest.mark.slow

SERVERS = {
    "starlette": ["h11", "httptools"],
    "fastapi": ["h11", "httptools"],
    "adjango": ["h11"],
    "lenient": ["h11", "httptools"],
    "wflask": ["gunicorn"],
    "wdjango": ["gunicorn"],
    "wlenient": ["gunicorn"],
}
PLACES = [(name, server) for name, servers in SERVERS.items() for server in servers]
ROUTED = [(name, server) for name, server in PLACES if "lenient" not in name and server != "httptools"]
EXACT = [("starlette", "h11"), ("fastapi", "httptools"), ("lenient", "h11"), ("wlenient", "gunicorn")]
SPELLINGS = [
    "/login",
    "/login%0A",
    "//login",
    "/login/",
    "/%6Cogin",
    "/login%00",
    "/log%0Din",
    "/log%FFin",
    "/LOGIN",
    "/x/../login",
    "/x/%2e%2e/login",
    "/x%2F..%2Flogin",
    "/x/..%252Flogin",
    "/x%5C..%5Clogin",
    "/./login?x",
]


USUAL = [
    ("starlette", "h11"),
    ("fastapi", "httptools"),
    ("adjango", "h11"),
    ("wflask", "gunicorn"),
    ("wdjango", "gunicorn"),
]
ALL = [pytest.param(place, marks=() if place in USUAL else pytest.mark.thorough) for place in PLACES]


@pytest.fixture(params=ALL, ids="-".join)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run one application in one server."""
    name, server = request.param
    port = free_port()
    output = tmp_path_factory.mktemp("served") / "log"
    if server == "gunicorn":
        command = ["gunicorn", "--bind", f"127.0.0.1:{port}", "--log-level", "critical", f"served_paths:{name}"]
    else:
        command = ["uvicorn", "--http", server, "--port", str(port), "--log-level", "critical", f"served_paths:{name}"]
    with running(output, port, *command):
        yield port


def send(port: int, line: str) -> tuple[int, bytes]:
    """Return the status and the body of a response."""
    response = say(port, f"{line} HTTP/1.1\nHost: x\nContent-Length: 0\nConnection: close\n\n")
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


def passed(port: int, lines: list[str], body: bytes) -> int:
    """Return how many of these requests reach the view that writes ``body``."""
    answers = [send(port, line) for line in lines]
    assert not any(status >= 500 for status, _ in answers)
    return sum(status == 200 and body in text for status, text in answers)


def test_no_spelling_of_a_path_evades_its_rule(port: int) -> None:
    """Five logins are allowed. Of 20 requests with a line feed, then of all spellings in turn, five pass at most."""
    assert passed(port, ["POST /login%0A"] * 20, b"login") <= 5
    assert passed(port, [f"POST {path}" for path in SPELLINGS for _ in range(3)], b"login") <= 5


@pytest.mark.parametrize("port", ROUTED, indirect=True, ids="-".join)
def test_rules_match_the_route_that_the_framework_finds(port: int) -> None:
    """A number has one value in any spelling, and a rule that names a view holds for every path of the view."""
    assert passed(port, ["GET /items/7", "GET /items/007"] * 5, b"item 7") == 5
    assert passed(port, [f"GET /accounts/reset/{i}" for i in range(10)], b"login") == 5


@pytest.mark.parametrize("port", EXACT, indirect=True, ids="-".join)
def test_a_line_feed_after_the_path_uses_up_the_same_limit(port: int) -> None:
    """Exactly five of 20 requests pass, and the plain path then has none left."""
    assert passed(port, ["POST /login%0A"] * 20, b"login") == 5
    assert passed(port, ["POST /login"], b"login") == 0
