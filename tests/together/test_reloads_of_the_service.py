"""``ratelimit-mw serve``, whose settings file changes while clients send requests."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from config_map import ConfigMap
from decision_service import PROGRAM, WITH_TOKEN, token_options
from deployed import accepts
from gateway_site import start, stop
from servers import PATIENCE, free_port, wait_for
from worker_load import PACE, LoadClients

pytestmark = pytest.mark.thorough

TIGHT = 5
CHANGES = 12


def toml(version: int, folder: Path) -> str:
    """Return settings whose rules all have the version in their amounts, but for a limit that stays the same."""
    return f"""
store = "lmdb://{folder}/state"
store_timeout = "9s"
reload_interval = "50ms"

[[rules]]
name = "tight"
match = {{ view = "" }}
limits = "{TIGHT}/hour"

[[rules]]
name = "first"
limits = "{version}/hour"

[[rules]]
name = "second"
key = ["path", "ip"]
limits = "{version}/hour"
"""


class Clients(LoadClients):
    """They keep what is wrong with the decisions, and the versions of the latest ones."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.wrong: list[str] = []
        self.versions = deque[int](maxlen=200)
        self.sent = self.allowed = 0

    def send(self, number: int) -> None:
        connection, due = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE), time.monotonic()
        for rule in [None] * 9 + ["tight"]:
            self._ask(connection, {"ip": f"192.0.2.{number}", "path": "/"}, rule)
            due = max(due + PACE, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
        connection.close()

    def _ask(self, connection: HTTPConnection, features: dict[str, str], rule: str | None) -> None:
        body = json.dumps({"features": features if rule is None else {"ip": "192.0.2.99"}, "rule": rule})
        connection.request("POST", "/v1/check", body, {"Content-Type": "application/json", **WITH_TOKEN})
        response = connection.getresponse()
        content: dict[str, Any] = json.loads(response.read())
        self.sent += 1
        limits = {each["rule"]: each["limit"] for each in content.get("decisions", ())}
        if rule is not None:
            self.allowed += content.get("allowed", True)
            if response.status != 200 or limits != {rule: TIGHT}:
                self.wrong.append(f"{response.status} {content}")
        elif response.status != 200 or list(limits) != ["first", "second"] or len(set(limits.values())) != 1:
            self.wrong.append(f"{response.status} {content}")
        else:
            self.versions.append(limits["first"])

    def have_seen(self, version: int) -> bool:
        return bool(self.wrong or self.errors) or version in self.versions

    def see_only(self, version: int) -> bool:
        versions = set(self.versions)
        return bool(self.wrong or self.errors) or (versions == {version} and len(self.versions) == 200)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_fails_or_meets_half_of_the_rules(workers: int, tmp_path: Path) -> None:
    """The file is replaced, written in halves or with mistakes, and its links change. Each worker follows."""
    port, first = free_port(), 10_000_000
    file = ConfigMap(tmp_path, partial(toml, folder=tmp_path), f"{TIGHT}/hour", cuts=(12,))
    file.replace(first)
    command = [str(PROGRAM), "serve", "ratelimit.toml", "--port", str(port), "--workers", str(workers)]
    command += token_options(tmp_path)
    processes = {"service": start(tmp_path, command)}
    try:
        wait_for(lambda: accepts(port), "the service")
        wait_for(lambda: (tmp_path / "servers.log").read_text().count("startup complete") == workers, "the workers")
        with Clients(port) as clients:
            version = first
            for number, change in zip(range(first + 1, first + 1 + CHANGES), itertools.cycle(file.ways), strict=False):
                if change(number):
                    version = number
                    wait_for(partial(clients.have_seen, version), f"{change.__name__} {version}")
            file.replace(version := first + 1 + CHANGES)
            wait_for(partial(clients.see_only, version), "the last version in all workers")
    finally:
        stop(processes)
    assert (clients.wrong, clients.errors) == ([], [])
    assert clients.allowed <= TIGHT
