"""Real servers with two workers, whose settings file changes 100 times while clients send requests."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
from config_map import ConfigMap
from servers import PATIENCE, wait_for
from worker_load import PACE, LoadClients, two_workers

pytestmark = pytest.mark.thorough

STARLETTE = """
import os
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.starlette import RateLimitMiddleware, check, limit

async def home(request):
    await check(request, "named")
    return PlainTextResponse(str(os.getpid()))

@limit("1/hour", name="view")
async def tight(request):
    return PlainTextResponse(str(os.getpid()))

app = Starlette(routes=[Route("/", home), Route("/tight", tight)])
app.add_middleware(RateLimitMiddleware, settings="ratelimit.toml")
"""
FLASK = """
import os
from flask import Flask
from ratelimit_mw.flask import RateLimiter, check, limit

app = Flask("app")
RateLimiter(app, settings="ratelimit.toml")

@app.get("/")
def home():
    check("named")
    return str(os.getpid())

@app.get("/tight")
@limit("1/hour", name="view")
def tight():
    return str(os.getpid())
"""
PROGRAMS = {"uvicorn": STARLETTE, "gunicorn": FLASK}
TIGHT = 5
CHANGES = 100


def toml(version: int, folder: Path) -> str:
    """Return settings whose rules all have the version in their amounts, but for a limit that stays the same."""
    return f"""
store = "lmdb://{folder}/state"
store_timeout = "9s"
headers = ["ratelimit"]
reload_interval = "50ms"

[[rules]]
name = "first"
match = {{ path = "/" }}
limits = "{version}/hour"

[[rules]]
name = "second"
match = {{ path = "/" }}
key = ["endpoint", "ip"]
limits = "{version}/hour"

[[rules]]
overrides = "view"
limits = "{TIGHT}/hour"

[[rules]]
name = "named"
match = {{ view = "" }}
limits = "{version}/hour"
"""


class Clients(LoadClients):
    """They keep what is wrong with the responses."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.wrong: list[str] = []
        self.by_worker: dict[str, int] = {}
        self.allowed = 0
        self.sent = 0

    def send(self, number: int) -> None:
        connection, due = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE), time.monotonic()
        for path in ["/"] * 9 + ["/tight"]:
            self._ask(connection, path)
            due = max(due + PACE, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        connection.close()

    def _ask(self, connection: HTTPConnection, path: str) -> None:
        connection.request("GET", path)
        response = connection.getresponse()
        body, policy = response.read().decode(), response.headers.get("RateLimit-Policy", "")
        self.sent += 1
        amounts = re.findall(r'"(\w+)";q=(\d+)', policy)
        if path == "/tight":
            self.allowed += response.status == 200
            if response.status not in (200, 429) or amounts != [("view", str(TIGHT))]:
                self.wrong.append(f"{response.status} {policy}")
            return
        versions = {amount for _, amount in amounts}
        names = [name for name, _ in amounts]
        if response.status != 200 or names != ["first", "second", "named"] or len(versions) != 1:
            self.wrong.append(f"{response.status} {policy} {body[:80]}")
        else:
            self.by_worker[body] = int(versions.pop())

    def have_seen(self, version: int, by: Callable[[list[bool]], bool]) -> bool:
        return bool(self.wrong or self.errors) or by([seen == version for seen in self.by_worker.values()])


@pytest.mark.parametrize("server", PROGRAMS)
def test_no_request_fails_or_meets_half_of_the_rules(server: str, tmp_path: Path) -> None:
    """The file is replaced, written in halves or with mistakes, and its links change. Each worker follows."""
    file, first = ConfigMap(tmp_path, partial(toml, folder=tmp_path), f"{TIGHT}/hour"), 10_000_000
    file.replace(first)
    ways = itertools.cycle(file.ways)
    with two_workers(server, PROGRAMS[server], tmp_path) as port, Clients(port) as clients:
        wait_for(lambda: clients.wrong or clients.errors or len(clients.by_worker) == 2, "two workers")
        version = first
        for number, change in zip(range(first + 1, first + 1 + CHANGES), ways, strict=False):
            if change(number):
                version = number
                wait_for(partial(clients.have_seen, version, any), f"{change.__name__} {version}")
        file.replace(version + CHANGES)
        wait_for(lambda: clients.have_seen(version + CHANGES, all), "all workers")
    assert (clients.wrong, clients.errors) == ([], [])
    assert len(clients.by_worker) == 2
    assert clients.allowed <= TIGHT
    assert clients.sent > CHANGES
