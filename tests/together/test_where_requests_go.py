"""However a client writes the path of a view, a real server and its framework never pass more than the rule allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_servers import say, served_port

pytestmark = pytest.mark.slow

PLACES = [
    ("starlette", "h11"),
    ("fastapi", "httptools"),
    ("wdjango", "gunicorn"),
    *(
        pytest.param(*place, marks=pytest.mark.thorough)
        for place in (
            ("starlette", "httptools"),
            ("fastapi", "h11"),
            ("adjango", "h11"),
            ("wflask", "gunicorn"),
            ("lenient", "h11"),
            ("lenient", "httptools"),
            ("wlenient", "gunicorn"),
        )
    ),
]
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


@contextmanager
def served(name: str, server: str, folder: Path) -> Iterator[int]:
    """Run one application in one server."""
    command = "gunicorn" if server == "gunicorn" else f"uvicorn --http {server}"
    with served_port(folder / "log", f"{command} --log-level critical served_paths:{name}") as port:
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


@pytest.mark.parametrize(("name", "server"), PLACES)
def test_no_spelling_of_a_path_evades_its_rule(name: str, server: str, tmp_path: Path) -> None:
    """Five logins are allowed. Of 20 requests with a line feed, then of all spellings in turn, five pass at most.

    With known routes, a number has one value in any spelling, and a rule that names a view holds for all its paths.
    """
    with served(name, server, tmp_path) as port:
        with_line_feed = passed(port, ["POST /login%0A"] * 20, b"login")
        assert with_line_feed <= 5
        if (name, server) in EXACT:
            assert (with_line_feed, passed(port, ["POST /login"], b"login")) == (5, 0)
        assert passed(port, [f"POST {path}" for path in SPELLINGS for _ in range(3)], b"login") <= 5
        if "lenient" not in name:
            assert passed(port, ["GET /items/7", "GET /items/007"] * 5, b"item 7") == 5
            assert passed(port, [f"GET /accounts/reset/{i}" for i in range(10)], b"login") == 5
