"""Fixtures of the traffic log: its stores, and a clock that stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_handles import address
from servers import Server
from traffic_records import NOW, limit_to

from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog
from ratelimit_mw.traffic import log as traffic_log
from ratelimit_mw.traffic.store import CountStore, LogAddress


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "redis":
        server: Server = request.getfixturevalue("redis_server")
        return address(server, f"?prefix={tmp_path.name}:")
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/traffic%20log.db"


@pytest.fixture
def log(url: str, clock: ManualClock) -> Iterator[TrafficLog]:
    with_thread = TrafficLog(url, clock=clock)
    yield with_thread
    with_thread.close()


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[CountStore]:
    """The stores that logs open from now on."""
    found: list[CountStore] = []
    open_counts = traffic_log.open_counts

    def noting(address: LogAddress) -> CountStore:
        found.append(open_counts(address))
        return found[-1]

    monkeypatch.setattr("ratelimit_mw.traffic.log.open_counts", noting)
    return found


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """The clients that an event keeps when it has more than twice as many."""
    limit_to(monkeypatch, clients=3)
    return 3
