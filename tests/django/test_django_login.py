"""The login rule of the README holds on Django's own login view, which responds to a failure with 200."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from http_servers import free_port, running

pytestmark = pytest.mark.slow
COMMANDS = {
    "uvicorn": ("--port", "{port}", "--log-level", "critical", "--lifespan", "off", "served_login:asgi"),
    "gunicorn": ("--bind", "127.0.0.1:{port}", "--log-level", "critical", "served_login:wsgi"),
}


@pytest.fixture(params=[pytest.param("uvicorn", marks=pytest.mark.thorough), "gunicorn"])
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("LOGIN_DATABASE", str(tmp_path / "users"))
    number = free_port()
    command = [part.format(port=number) for part in COMMANDS[request.param]]
    with running(tmp_path / "log", number, request.param, *command):
        yield number


def log_in(port: int, password: str, client: str, times: int) -> list[tuple[int, str]]:
    """Send the form of the login view. Return the status and the remaining requests of each response."""
    headers = {"x-forwarded-for": client}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=180, trust_env=False) as browser:
        browser.get("/login/")
        responses = []
        for _ in range(times):  # a success changes the token
            token = browser.cookies["csrftoken"]
            form = {"username": "ann", "password": password, "csrfmiddlewaretoken": token}
            responses.append(browser.post("/login/", data=form))
    return [(response.status_code, left_in(response.headers["ratelimit"])) for response in responses]


def left_in(field: str) -> str:
    """Return the rest of the rule for logins. The site has a rule for everyone, too."""
    return field.partition('"login";r=')[2].partition(";")[0]


def test_five_of_250_failed_logins_pass(port: int) -> None:
    """A success is a redirect, which does not count: the headers show all five attempts after it."""
    assert log_in(port, "secret", "192.0.2.1", 1) == [(302, "5")]
    failed = log_in(port, "guess", "192.0.2.7", 250)
    assert [status for status, _ in failed] == [200] * 5 + [429] * 245
    assert [left for _, left in failed[:6]] == ["4", "3", "2", "1", "0", "0"]
    assert [status for status, _ in log_in(port, "secret", "192.0.2.8", 30)] == [302] * 30
    assert log_in(port, "secret", "192.0.2.7", 1)[0][0] == 429
