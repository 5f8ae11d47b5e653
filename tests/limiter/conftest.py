"""Stores and clocks that several tests of the limiter share."""

import pytest
from shared_store import SharedStore

from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.stores.heartbeat import Heartbeat
from ratelimit_mw.testing import ManualClock


@pytest.fixture(params=[MemoryStore, SharedStore], ids=["memory", "shared"])
def store(request: pytest.FixtureRequest) -> Store:
    made: Store = request.param()
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def no_report_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests report themselves, at the times of their clock."""
    monkeypatch.setattr(Heartbeat, "hold", lambda *_: None)
