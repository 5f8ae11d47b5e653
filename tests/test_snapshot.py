"""Snapshots of the memory store: what was spent survives a restart, and a bad file never stops one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.testing import ManualClock

ALGORITHMS = [
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
    "tiered-window",
    "token-bucket",
    {"name": "token-bucket", "refill": "interval"},
    {"name": "leaky-bucket", "mode": "queue"},
]
CLOCK = ManualClock(1_000_000.0)


def limiter(store: MemoryStore | str, algorithm: object = "fixed-window") -> Limiter:
    return Limiter([Rule(name="api", limits="3/hour", algorithm=algorithm)], store=store, clock=CLOCK)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_what_was_spent_survives_a_restart(tmp_path: Path, algorithm: object) -> None:
    """A store closed and opened again goes on where it was, for every algorithm and any text in keys."""
    address = f"memory://?snapshot={tmp_path / 'limits'}"
    before = limiter(address, algorithm)
    clients = [{"ip": "192.0.2.7"}, {"ip": "odd |\n\udce9 key"}]
    for features in clients:
        before.hit(features, cost=2)
    told = [before.peek(features).decisions[0].remaining for features in clients]
    before.close()
    after = limiter(address, algorithm)
    assert [after.peek(features).decisions[0].remaining for features in clients] == told
    assert [after.hit(features, cost=2).allowed for features in clients] == [False, False]


def test_shared_states_survive_too(tmp_path: Path) -> None:
    """A key that shared a state at the bound is not free after a restart."""
    first = MemoryStore(max_keys=1, snapshot=tmp_path / "limits")
    before = limiter(first)
    before.hit({"ip": "first"})
    before.hit({"ip": "second"}, cost=3)
    before.close()
    assert not limiter(MemoryStore(max_keys=1, snapshot=tmp_path / "limits")).hit({"ip": "second"})


def test_limits_that_nobody_asked_for_stay_in_the_file(tmp_path: Path) -> None:
    """Two restarts in a row, the first without a request, lose nothing."""
    path = tmp_path / "limits"
    before = limiter(MemoryStore(snapshot=path))
    before.hit({"ip": "192.0.2.7"}, cost=3)
    before.close()
    MemoryStore(snapshot=path).close()
    assert not limiter(MemoryStore(snapshot=path)).hit({"ip": "192.0.2.7"})


def test_no_more_keys_than_the_bound_are_taken_over(tmp_path: Path) -> None:
    """A snapshot of a larger store fits into a smaller one."""
    before = limiter(MemoryStore(snapshot=tmp_path / "limits"))
    for i in range(10):
        before.hit({"ip": str(i)})
    before.close()
    store = MemoryStore(max_keys=4, snapshot=tmp_path / "limits")
    limiter(store).peek({"ip": "0"})
    assert len(store) == 4


def test_saving_on_demand_replaces_the_file_whole(tmp_path: Path) -> None:
    """``save`` leaves one file and nothing beside it."""
    store = MemoryStore()
    limiter(store).hit({"ip": "192.0.2.7"})
    for _ in range(2):
        store.save(tmp_path / "limits")
    assert [path.name for path in tmp_path.iterdir()] == ["limits"]
    assert not limiter(MemoryStore(snapshot=tmp_path / "limits")).hit({"ip": "192.0.2.7"}, cost=3)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """A target that cannot be replaced raises, and no temporary file stays behind."""
    (tmp_path / "limits").mkdir()
    with pytest.raises(OSError, match="limits"):
        MemoryStore().save(tmp_path / "limits")
    assert [path.name for path in tmp_path.iterdir()] == ["limits"]


def test_without_a_place_saving_is_a_mistake() -> None:
    """``save()`` needs a path when the store has none of its own."""
    with pytest.raises(ConfigError, match="snapshot"):
        MemoryStore().save()


@pytest.mark.parametrize("damage", [b"", b"junk", b"cut", b"flipped", b"folder"])
def test_a_damaged_snapshot_is_reported_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    """The application starts without it, and one log line names the file."""
    path = tmp_path / "limits"
    if damage == b"folder":
        path.mkdir()
    else:
        store = MemoryStore()
        limiter(store).hit({"ip": "192.0.2.7"})
        store.save(path)
        whole = path.read_bytes()
        changed = {b"cut": whole[:-3], b"flipped": whole[:-1] + bytes([whole[-1] ^ 1])}
        path.write_bytes(changed.get(damage, damage))
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        opened = open_store(f"memory://?snapshot={path}")
    assert [record.getMessage().count(str(path)) for record in caplog.records] == [1]
    assert limiter(opened).hit({"ip": "192.0.2.7"}, cost=3).allowed  # type: ignore[arg-type]
