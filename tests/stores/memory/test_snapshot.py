"""Snapshots of the memory store: counts survive a restart, and a damaged file never prevents one."""

from __future__ import annotations

import gc
import logging
import os
import threading
from hashlib import blake2b
from pathlib import Path
from weakref import ref

import pytest
from servers import wait_for

from ratelimit_mw import ConfigError, Limiter, Rule
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.stores import MemoryStore, open_store
from ratelimit_mw.stores.memory import snapshot
from ratelimit_mw.stores.memory import store as store_module
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
def test_counts_survive_a_restart(tmp_path: Path, algorithm: object) -> None:
    """This holds for every algorithm and for any text in keys."""
    address = f"memory://?snapshot={tmp_path / 'limits'}"
    before = limiter(address, algorithm)
    clients = [{"ip": "192.0.2.7"}, {"ip": "odd |\n\udce9 key"}]
    for features in clients:
        before.hit(features, cost=2)
    remaining = [before.peek(features).decisions[0].remaining for features in clients]
    before.close()
    after = limiter(address, algorithm)
    assert [after.peek(features).decisions[0].remaining for features in clients] == remaining
    assert [after.hit(features, cost=2).allowed for features in clients] == [False, False]


def test_unused_counts_stay_in_the_file(tmp_path: Path) -> None:
    """Two restarts, the first without a request, lose no count."""
    path = tmp_path / "limits"
    before = limiter(MemoryStore(snapshot=path))
    before.hit({"ip": "192.0.2.7"}, cost=3)
    before.close()
    MemoryStore(snapshot=path).close()
    assert not limiter(MemoryStore(snapshot=path)).hit({"ip": "192.0.2.7"})


def test_a_snapshot_without_counts_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process that had no request does not write one itself: a newer one may be there. A first start logs nothing."""
    MemoryStore(snapshot=tmp_path / "limits").close()
    assert not any(tmp_path.iterdir())
    MemoryStore(snapshot=tmp_path / "limits").save()
    assert limiter(MemoryStore(snapshot=tmp_path / "limits")).hit({"ip": "192.0.2.7"}, cost=3)
    assert not caplog.messages


def test_a_reset_without_a_request_survives_a_restart(tmp_path: Path) -> None:
    address, client = f"memory://?snapshot={tmp_path / 'limits'}", {"ip": "192.0.2.7"}
    used = limiter(address)
    used.hit(client, cost=3)
    used.close()
    restarted = limiter(address)
    restarted.reset("api", client)
    restarted.close()
    assert limiter(address).hit(client)


SITES = [Rule(name=name, limits="3/hour", match={"path": f"/{name}"}) for name in "ab"]


def site(store: MemoryStore, clock: ManualClock = CLOCK) -> Limiter:
    return Limiter(SITES, store=store, clock=clock)


@pytest.mark.parametrize("max_keys", [100, 10, 1], ids=["full", "smaller", "one"])
def test_a_flood_after_a_restart_frees_no_client(tmp_path: Path, max_keys: int) -> None:
    """Rejected clients stay rejected, although new clients of another rule come first."""
    before = site(MemoryStore(max_keys=100, snapshot=tmp_path / "limits"))
    for i in range(10):
        assert before.hit({"ip": f"{i}", "path": "/b"}, cost=3)
    for i in range(90):
        before.hit({"ip": f"{i}", "path": "/a"}, cost=3)
    before.close()
    store = MemoryStore(max_keys=max_keys, snapshot=tmp_path / "limits")
    after = site(store)
    assert len(store) == 100
    for i in range(1000):
        after.hit({"ip": f"stranger {i}", "path": "/a"})
    assert len(store) == 100
    assert not any(after.hit({"ip": f"{i}", "path": "/b"}) for i in range(10))
    assert not any(after.hit({"ip": f"{i}", "path": "/a"}) for i in range(90))


def test_loaded_counts_expire(tmp_path: Path) -> None:
    """This includes the counts of rules that no longer exist."""
    clock = ManualClock(1_000_000.0)
    before = site(MemoryStore(snapshot=tmp_path / "limits"), clock)
    for i in range(10):
        before.hit({"ip": f"{i}", "path": "/a"})
        before.hit({"ip": f"{i}", "path": "/b"})
    before.close()
    store = MemoryStore(max_keys=4, snapshot=tmp_path / "limits")
    after = Limiter([Rule(name="new", limits="3/minute", key=[]), SITES[1]], store=store, clock=clock)
    for _ in range(3):
        clock.advance(4 * 3600)
        after.hit({})
    assert len(store) == 1
    after.close()
    assert len(MemoryStore(snapshot=tmp_path / "limits")) == 1


def test_counts_of_a_clock_that_was_ahead_expire(tmp_path: Path) -> None:
    """Two periods after the restart the memory is free."""
    clock = ManualClock(4_000_000_000.0)
    before = site(MemoryStore(snapshot=tmp_path / "limits"), clock)
    before.hit({"ip": "192.0.2.7", "path": "/a"})
    before.close()
    clock.set(1_000_000.0)
    store = MemoryStore(snapshot=tmp_path / "limits")
    after = site(store, clock)
    after.peek({"ip": "192.0.2.7", "path": "/b"})
    assert len(store) == 1
    for _ in range(3):
        clock.advance(2 * 3600)
        after.peek({"ip": "192.0.2.7", "path": "/b"})
    assert len(store) == 0


def test_an_overdue_key_survives_restarts(tmp_path: Path) -> None:
    """A bucket charged a hundred times its size stays rejected until it has drained."""
    clock = ManualClock(1_000_000.0)
    rules = [Rule(name="api", limits="60/minute burst 10", algorithm="token-bucket")]
    rate = Limiter(rules, MemoryStore(snapshot=tmp_path / "limits"), clock)
    rate.settle(rate.hit({"ip": "debtor"}), 1000)
    for _ in range(9):
        rate.close()
        rate = Limiter(rules, MemoryStore(snapshot=tmp_path / "limits"), clock)
        clock.advance(110)
        rate.hit({"ip": "other client"})
    assert not rate.hit({"ip": "debtor"})
    clock.advance(2)
    assert rate.hit({"ip": "debtor"})


def test_a_debt_of_any_size_is_saved(tmp_path: Path) -> None:
    """It may last for longer than a number of 64 bits can hold."""
    rules = [Rule(name="api", limits="1/366d", algorithm="gcra")]
    rate = Limiter(rules, MemoryStore(snapshot=tmp_path / "limits"), CLOCK)
    rate.settle(rate.hit({"ip": "debtor"}), 10**12)
    rate.close()
    assert not Limiter(rules, MemoryStore(snapshot=tmp_path / "limits"), CLOCK).hit({"ip": "debtor"})


def test_loaded_counts_can_be_settled_and_reset(tmp_path: Path) -> None:
    """This includes keys in shared states."""
    for clients in (["own"], ["other", "shared"]):
        before = limiter(MemoryStore(max_keys=1, snapshot=tmp_path / "limits"))
        verdicts = [before.hit({"ip": client}, cost=2) for client in clients]
        before.close()
        charged = limiter(MemoryStore(max_keys=1, snapshot=tmp_path / "limits"))
        charged.settle(verdicts[-1], 3)
        assert not charged.hit({"ip": clients[-1]})
        forgot = limiter(MemoryStore(max_keys=1, snapshot=tmp_path / "limits"))
        forgot.reset("api", {"ip": clients[-1]})
        assert forgot.hit({"ip": clients[-1]}, cost=3)
        (tmp_path / "limits").unlink()


def test_a_state_in_another_form_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm that writes states in a new form starts at zero, and no request fails."""
    before = limiter(MemoryStore(snapshot=tmp_path / "limits"))
    before.hit({"ip": "192.0.2.7"}, cost=3)
    monkeypatch.setattr(FixedWindow, "dump", lambda *_: b"another form")
    before.close()
    store = MemoryStore(snapshot=tmp_path / "limits")
    after = limiter(store)
    assert [after.hit({"ip": "192.0.2.7"}).allowed for _ in range(4)] == [True, True, True, False]
    assert len(store) == 1


def test_save_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    store = MemoryStore()
    limiter(store).hit({"ip": "192.0.2.7"})
    for _ in range(2):
        store.save(tmp_path / "limits")
    assert [path.name for path in tmp_path.iterdir()] == ["limits"]
    assert not limiter(MemoryStore(snapshot=tmp_path / "limits")).hit({"ip": "192.0.2.7"}, cost=3)


def test_the_snapshot_is_written_at_an_interval(tmp_path: Path) -> None:
    """The counts survive a process that is killed. The thread ends with its store."""
    path, before = tmp_path / "limits", {*threading.enumerate()}
    store = open_store(f"memory://?snapshot={path}&snapshot_interval=10ms")
    assert isinstance(store, MemoryStore)
    running = limiter(store)
    assert before.issuperset(threading.enumerate()), "nothing to write yet"
    running.hit({"ip": "192.0.2.7"}, cost=3)
    wait_for(path.exists, "the snapshot")
    (thread,) = set(threading.enumerate()) - before
    assert not limiter(MemoryStore(snapshot=path)).hit({"ip": "192.0.2.7"})
    store.close()
    thread.join()
    path.unlink()
    before = {*threading.enumerate()}
    assert limiter(store).hit({"ip": "192.0.2.8"})
    wait_for(path.exists, "a snapshot of the store that is in use again")
    (thread,), dead = set(threading.enumerate()) - before, ref(store)
    del store, running
    gc.collect()
    thread.join()
    store_module._save(dead)  # as a thread that had begun


def test_a_write_of_the_thread_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next request and the next write succeed."""
    store = MemoryStore(snapshot=tmp_path / "limits", snapshot_interval=0.01)
    (tmp_path / "limits").mkdir()
    assert limiter(store).hit({"ip": "192.0.2.7"})
    wait_for(lambda: "could not write the snapshot; it has older counts" in caplog.text, "the line")
    (tmp_path / "limits").rmdir()
    wait_for((tmp_path / "limits").is_file, "the snapshot")
    store.close()


def test_a_write_at_the_end_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error would end the shutdown of an application, and some servers would not show it."""
    path = tmp_path / "limits"
    running = limiter(MemoryStore(snapshot=path))
    running.hit({"ip": "192.0.2.7"})
    path.mkdir()
    running.close()
    assert caplog.messages == [f"cannot write the snapshot {path} (Is a directory); a restart begins with older counts"]


def test_a_wrong_interval_is_an_error(tmp_path: Path) -> None:
    """It is a duration above 0."""
    for query, message in (
        (
            f"snapshot={tmp_path}/limits&snapshot_interval=soon",
            "memory:// option snapshot_interval: expected a duration",
        ),
        (f"snapshot={tmp_path}/limits&snapshot_interval=0s", "a time above 0, got 0.0 seconds"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_store(f"memory://?{query}")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """The error is raised, and no temporary file remains."""
    (tmp_path / "limits").mkdir()
    with pytest.raises(OSError, match="limits"):
        MemoryStore().save(tmp_path / "limits")
    assert [path.name for path in tmp_path.iterdir()] == ["limits"]


def test_a_damaged_snapshot_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The application starts, and one log line names the file."""
    path, store = tmp_path / "limits", MemoryStore()
    limiter(store).hit({"ip": "192.0.2.7"})
    store.save(path)
    whole = path.read_bytes()
    other = snapshot._MAGIC + blake2b(b"\x01", digest_size=16).digest() + b"\x01"  # of another version
    for data in (b"", b"junk", whole[:-3], whole[:30] + bytes([whole[30] ^ 1]) + whole[31:], other):
        path.write_bytes(data)
        check_ignored(path, caplog)
    for make in (Path.mkdir, os.mkfifo):
        path = tmp_path / make.__name__
        make(path)
        check_ignored(path, caplog)


def check_ignored(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        opened = open_store(f"memory://?snapshot={path}")
    assert [record.getMessage().count(str(path)) for record in caplog.records] == [1]
    assert limiter(opened).hit({"ip": "192.0.2.7"}, cost=3).allowed  # type: ignore[arg-type]
