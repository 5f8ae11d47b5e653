"""Real servers with two workers, whose overrides change 50 times while clients send 500 requests in a second."""

from __future__ import annotations

import itertools
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path

import pytest
from command_line import run, start
from redis_handles import address
from servers import PATIENCE, Server, wait_for
from worker_load import PACE, PROGRAMS, LoadClients, two_workers

from ratelimit_mw import Limiter

pytestmark = pytest.mark.thorough

SETTINGS = """
store = "{}"
store_timeout = "9s"
headers = ["x-ratelimit"]
reload_interval = "50ms"

[[rules]]
name = "api"
match = {{ path = "/" }}
key = ["header:x-user"]
limits = "1000000/hour"
"""
CHANGES = 50


class Clients(LoadClients):
    """They send as two users. They count responses by user, status and limit."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.seen: Counter[tuple[str, int, int]] = Counter()

    def send(self, number: int) -> None:
        self.is_over.wait(PACE)
        user = "acme" if number % 2 else "other"
        status, limit, _ = ask(self.port, user)
        self.seen[user, status, limit] += 1


def ask(port: int, user: str, path: str = "/") -> tuple[int, int, str]:
    """Return status, limit and process of a request with a connection of its own: each may meet another worker."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path, headers={"x-user": user, "connection": "close"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, int(response.headers["x-ratelimit-limit"]), body


def learn(port: int, user: str, limit: int, path: str = "/") -> None:
    """Wait until both workers have this limit for a user."""
    last: dict[str, int] = {}

    def have_learnt() -> bool:
        _, found, worker = ask(port, user, path)
        last[worker] = found
        return len(last) > 1 and set(last.values()) == {limit}

    wait_for(have_learnt, f"the limit {limit} in both workers")


@pytest.fixture(params=["lmdb", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lmdb":
        return f"lmdb://{tmp_path}/state"
    server: Server = request.getfixturevalue("redis_server")
    return address(server, f"?prefix={tmp_path.name}:")


@pytest.mark.parametrize("server", PROGRAMS)
def test_workers_follow_overrides_under_load(server: str, store: str, tmp_path: Path) -> None:
    """No request fails or meets limits that no override has, and other clients keep theirs.

    Limits of decorators take part, and an override ends automatically.
    """
    file = tmp_path / "ratelimit.toml"
    file.write_text(SETTINGS.format(store))
    with two_workers(server, tmp_path) as port:
        learn(port, "acme", 1_000_000)
        limiter = Limiter.from_settings(file)
        with Clients(port) as clients:
            for version in itertools.islice(itertools.count(2_000_000), CHANGES):
                before = sum(clients.seen.values())
                if version % 5:
                    limiter.clients.override("api", {"header:x-user": "acme"}, f"{version}/hour")
                else:
                    limiter.clients.remove_override("api", {"header:x-user": "acme"})
                wait_for(lambda before=before: sum(clients.seen.values()) > before + 25 or clients.errors, "requests")
        limiter.close()
        assert clients.errors == []
        assert {status for _, status, _ in clients.seen} == {200}
        assert {limit for user, _, limit in clients.seen if user == "other"} == {1_000_000}
        met = {limit for user, _, limit in clients.seen if user == "acme"}
        assert met <= {1_000_000, *range(2_000_000, 2_000_000 + CHANGES)}
        assert len(met) > 5
        learn(port, "acme", 2_000_000 + CHANGES - 1)
        assert run("override", "remove", file, "api", "header:x-user=acme").exit_code == 0
        learn(port, "acme", 1_000_000)
        for duration, limit in (("1h", 900), ("1s", 700)):
            words = ("view", "header:x-user=acme", "900/hour", "--for", duration)
            result = start("override", "set", "--app", "app:app", *words, cwd=tmp_path)
            assert result.returncode == 0, result.stderr
            learn(port, "acme", limit, "/view")
    assert "Traceback" not in (tmp_path / "output").read_text()
