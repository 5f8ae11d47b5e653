"""FastAPI, Flask and Django share one settings file and one Redis, each in its own server process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from folders import SUPPORT
from http_servers import running
from servers import HOST, free_port, redis_running, wait_for

pytestmark = pytest.mark.slow

HERE = SUPPORT / "together"
PATIENCE = 180.0
SERVERS = {
    "fastapi": ("uvicorn", "fastapi_side:app", "--host", HOST, "--log-level", "warning", "--port"),
    "flask": ("gunicorn", "flask_side:app", "--log-level", "warning", "--bind"),
    "django": ("gunicorn", "django_side:application", "--log-level", "warning", "--bind"),
}
ROUNDS = [True] * 6 + [False] * 3
"""Three times around the three applications, under a limit of six."""


@contextmanager
def served(name: str, limits: Path, output: Path) -> Iterator[httpx.Client]:
    """Run one of the applications until the block ends."""
    port = free_port()
    place = str(port) if name == "fastapi" else f"{HOST}:{port}"
    with (
        running(output, port, *SERVERS[name], place, folder=HERE, LIMITS=str(limits)),
        httpx.Client(base_url=f"http://{HOST}:{port}", trust_env=False, timeout=PATIENCE) as client,
    ):
        wait_for(lambda: client.get("/").status_code == 404, f"{name}: {output}", PATIENCE)
        yield client


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[httpx.Client]]:
    """Run the three applications on one Redis."""
    folder = tmp_path_factory.mktemp("together")
    with ExitStack() as stack:
        redis = stack.enter_context(redis_running(folder))
        limits = folder / "limits.toml"
        limits.write_text(f'store = "redis://{HOST}:{redis.port}/0"\n' + (HERE / "limits.toml").read_text())
        yield [stack.enter_context(served(name, limits, folder / name)) for name in SERVERS]


def send_in_turn(sides: list[httpx.Client], method: str, path: str, **options: Any) -> list[httpx.Response]:
    """Send the same request nine times, to each application in turn. The client is behind a trusted proxy."""
    return [side.request(method, path, **options) for side, _ in zip(cycle(sides), ROUNDS, strict=False)]


def allowed(responses: list[httpx.Response]) -> list[bool]:
    assert {response.status_code for response in responses} <= {200, 401, 429}
    return [response.status_code != 429 for response in responses]


def test_applications_share_the_count_of_a_client(sides: list[httpx.Client]) -> None:
    """Six pages an hour are six for all applications, and each reports the remaining pages."""
    responses = send_in_turn(sides, "GET", "/page", headers={"x-forwarded-for": "192.0.2.1"})
    assert allowed(responses) == ROUNDS
    assert [response.headers["x-ratelimit-remaining"] for response in responses] == list("543210000")
    assert {response.headers["ratelimit-policy"] for response in responses} == {'"client";q=6;w=3600'}
    other = send_in_turn(sides, "GET", "/page", headers={"x-forwarded-for": "192.0.2.2"})
    assert allowed(other) == ROUNDS


def test_routes_with_one_template_share_a_count(sides: list[httpx.Client]) -> None:
    """``/items/{id}``, ``/items/<int:id>`` and ``items/<int:id>`` are one endpoint for all numbers."""
    responses = [
        side.get(f"/items/{number}", headers={"x-forwarded-for": "192.0.2.3"})
        for number, (side, _) in enumerate(zip(cycle(sides), ROUNDS, strict=False))
    ]
    assert allowed(responses) == ROUNDS


def test_applications_share_the_count_of_a_user(sides: list[httpx.Client]) -> None:
    """User 7 is one user for Starlette's authentication, Flask-Login and Django, from any IP address."""
    responses = [
        side.get("/items/1", headers={"x-user": "7", "x-forwarded-for": f"192.0.2.{100 + number}"})
        for number, (side, _) in enumerate(zip(cycle(sides), ROUNDS, strict=False))
    ]
    assert allowed(responses) == ROUNDS
    assert allowed(send_in_turn(sides, "GET", "/items/1", headers={"x-user": "8"})) == ROUNDS


def test_applications_share_the_failed_logins_of_an_email(sides: list[httpx.Client]) -> None:
    """Failed logins with one email share a count, from JSON and forms, in any spelling."""
    options: list[dict[str, Any]] = [
        {"json": {"email": "Ann@Example.com"}},
        {"data": {"email": " ann@example.com"}},
        {"data": {"email": "ANN@example.COM"}},
    ]
    responses = [
        side.post("/login", **body)
        for (side, body), _ in zip(cycle(zip(sides, options, strict=True)), ROUNDS, strict=False)
    ]
    assert allowed(responses) == ROUNDS


def test_decorators_with_one_name_share_a_count(sides: list[httpx.Client]) -> None:
    """The file overrides the three decorators named ``report`` with one limit, which has one count."""
    assert allowed(send_in_turn(sides, "GET", "/report", headers={"x-user": "9"})) == ROUNDS
