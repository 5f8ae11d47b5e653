"""One settings file and one Redis for FastAPI, Flask and Django, each a server process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from folders import SUPPORT
from servers import HOST, free_port, redis_running, wait_for

pytestmark = pytest.mark.slow

HERE = SUPPORT / "together"
PATIENCE = 60.0
SERVERS = {
    "fastapi": ("uvicorn", "fastapi_side:app", "--host", HOST, "--log-level", "warning", "--port"),
    "flask": ("gunicorn", "flask_side:app", "--log-level", "warning", "--bind"),
    "django": ("gunicorn", "django_side:application", "--log-level", "warning", "--bind"),
}
ROUNDS = [True] * 6 + [False] * 3
"""Three times around the three applications, under a limit of six."""


@contextmanager
def served(name: str, limits: Path, output: Path) -> Iterator[httpx.Client]:
    """One of the applications, until the block ends."""
    port = free_port()
    environment = {**os.environ, "LIMITS": str(limits)}
    place = str(port) if name == "fastapi" else f"{HOST}:{port}"
    command = [sys.executable, "-m", *SERVERS[name], place]
    with output.open("wb") as said:
        process = subprocess.Popen(command, cwd=HERE, env=environment, stdout=said, stderr=said)
    try:
        with httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=PATIENCE) as client:
            wait_for(lambda: process.poll() is not None or answers(client), f"{name}: {output}", PATIENCE)
            assert process.poll() is None, output.read_text()
            yield client
    finally:
        process.terminate()
        process.wait(PATIENCE)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 404
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[httpx.Client]]:
    """The three of them on one Redis."""
    folder = tmp_path_factory.mktemp("together")
    with ExitStack() as stack:
        redis = stack.enter_context(redis_running(folder))
        limits = folder / "limits.toml"
        limits.write_text(f'store = "redis://{HOST}:{redis.port}/0"\n' + (HERE / "limits.toml").read_text())
        yield [stack.enter_context(served(name, limits, folder / name)) for name in SERVERS]


def around(sides: list[httpx.Client], method: str, path: str, **asked: Any) -> list[httpx.Response]:
    """The same request nine times, to each application in turn; the client is behind a trusted proxy."""
    return [side.request(method, path, **asked) for side, _ in zip(cycle(sides), ROUNDS, strict=False)]


def let_in(answers: list[httpx.Response]) -> list[bool]:
    assert {answer.status_code for answer in answers} <= {200, 401, 429}
    return [answer.status_code != 429 for answer in answers]


def test_a_client_is_counted_together(sides: list[httpx.Client]) -> None:
    """Six pages an hour are six in all, in any of the applications, and each reports the remaining pages."""
    answers = around(sides, "GET", "/page", headers={"x-forwarded-for": "192.0.2.1"})
    assert let_in(answers) == ROUNDS
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == list("543210000")
    assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"client";q=6;w=3600'}
    other = around(sides, "GET", "/page", headers={"x-forwarded-for": "192.0.2.2"})
    assert let_in(other) == ROUNDS


def test_routes_with_one_template_are_counted_together(sides: list[httpx.Client]) -> None:
    """``/items/{id}``, ``/items/<int:id>`` and ``items/<int:id>`` are one endpoint for all numbers."""
    answers = [
        side.get(f"/items/{number}", headers={"x-forwarded-for": "192.0.2.3"})
        for number, (side, _) in enumerate(zip(cycle(sides), ROUNDS, strict=False))
    ]
    assert let_in(answers) == ROUNDS


def test_a_user_is_counted_together(sides: list[httpx.Client]) -> None:
    """User 7 is one person for Starlette's authentication, Flask-Login and Django's, from any address."""
    answers = [
        side.get("/items/1", headers={"x-user": "7", "x-forwarded-for": f"192.0.2.{100 + number}"})
        for number, (side, _) in enumerate(zip(cycle(sides), ROUNDS, strict=False))
    ]
    assert let_in(answers) == ROUNDS
    assert let_in(around(sides, "GET", "/items/1", headers={"x-user": "8"})) == ROUNDS


def test_failures_for_an_address_of_mail_are_counted_together(sides: list[httpx.Client]) -> None:
    """Failed logins for one address count together, out of JSON and out of forms, in any spelling."""
    asked: list[dict[str, Any]] = [
        {"json": {"email": "Ann@Example.com"}},
        {"data": {"email": " ann@example.com"}},
        {"data": {"email": "ANN@example.COM"}},
    ]
    answers = [
        side.post("/login", **body)
        for (side, body), _ in zip(cycle(zip(sides, asked, strict=True)), ROUNDS, strict=False)
    ]
    assert let_in(answers) == ROUNDS


def test_a_decorator_s_limit_of_one_name_is_counted_together(sides: list[httpx.Client]) -> None:
    """The file overrides the three decorators called ``report`` with one limit, which has one count."""
    assert let_in(around(sides, "GET", "/report", headers={"x-user": "9"})) == ROUNDS
