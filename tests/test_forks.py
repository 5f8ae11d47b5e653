"""Forks: a child process is served whatever the threads of its parent were doing, and uses nothing of its parent."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
from folders import SUPPORT
from redis_handles import address
from servers import Server

from ratelimit_mw import Limiter, Rule, forksafe
from ratelimit_mw.decision import Verdict
from ratelimit_mw.heartbeat import Heartbeat

CLIENT = {"ip": "192.0.2.7"}
RARE = [pytest.param(name, marks=pytest.mark.thorough) for name in ("away", "twice")]


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["refunds", "slots", "stuck", "without_hooks", "killed", *RARE])
def test_child_is_served(redis_server: Server, scene: str) -> None:
    """Each scene forks a real process beside real threads. No child waits for a lock that stays locked."""
    store = address(redis_server) if scene in ("without_hooks", "killed") else "memory://"
    program = SUPPORT / "busy_forks.py"
    assert subprocess.run([sys.executable, program, scene, store], timeout=200, check=False).returncode == 0


def test_child_starts_empty_when_a_thread_was_changing_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child keeps the parent's counts, unless a thread held the lock of the tables during the fork."""
    monkeypatch.setattr(forksafe, "_SECONDS", 0.01)
    limiter = Limiter([Rule(name="child", limits="2/hour")])
    limiter.hit(CLIENT)
    forksafe._before()
    forksafe._in_child()
    assert [limiter.hit(CLIENT).allowed for _ in range(2)] == [True, False]
    with limiter.store._lock:  # type: ignore[union-attr]
        forksafe._before()
        forksafe._in_child()
        assert [limiter.hit(CLIENT).allowed for _ in range(3)] == [True, True, False]


def test_child_does_not_renew_the_slots_of_its_parent() -> None:
    """The heartbeat of a child renews only the slots taken after the fork."""
    renewed: list[Verdict] = []
    seen = threading.Event()
    parents, own = Verdict(), Verdict()

    def renew(verdict: Verdict) -> None:
        renewed.append(verdict)
        seen.set()

    heartbeat = Heartbeat(renew, interval=0.01)
    heartbeat._held.add(parents)
    forksafe._in_child()
    heartbeat.hold(own)
    assert seen.wait(180)
    heartbeat.close()
    assert set(renewed) == {own}


def test_locks_and_callbacks_end_with_their_owner() -> None:
    """The table of locks does not grow with limiters that no longer exist, and does not keep them alive."""
    before = set(forksafe._entries)
    owners = [Heartbeat(id, 1.0), Owner()]
    forksafe.run_in_child(owners[1], id)
    assert len(forksafe._entries.keys() - before) == 2
    owners.clear()
    gc.collect()
    assert not forksafe._entries.keys() - before


def test_fork_leaves_the_parent_unchanged() -> None:
    """Locks taken for a fork are released. An owner whose lock is not assigned yet is skipped."""
    calls: list[object] = []
    unfinished, heartbeat = Owner(), Heartbeat(id, 1.0)
    forksafe.create_lock(unfinished, "lock", threading.Lock, lambda owner, intact: calls.append(owner))
    forksafe._before()
    assert heartbeat._lock.locked()
    forksafe._in_parent()
    assert not heartbeat._lock.locked()
    assert not forksafe._held
    forksafe._in_child()
    assert not calls


def test_check_process_runs_callbacks_once_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check after a fork without Python's hooks runs the callbacks, and no other check does."""
    owner = Owner()
    calls: list[object] = []
    forksafe.run_in_child(owner, calls.append)
    forksafe.check_process()
    assert calls == []
    monkeypatch.setattr(forksafe, "process", -1)
    forksafe.check_process()
    forksafe.check_process()
    assert calls == [owner]


class Owner:
    """An object to register."""


def test_a_thread_that_waited_does_not_repeat_the_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork without Python's hooks, the callbacks run once, although two threads notice the fork."""

    class OtherThreadFirst:
        """A lock that is free as soon as another thread has run the callbacks."""

        def __enter__(self) -> None:
            forksafe._in_child()

        def __exit__(self, *error: object) -> None:
            pass

    owner, calls = Owner(), []
    forksafe.run_in_child(owner, calls.append)
    monkeypatch.setattr(forksafe, "process", -1)
    monkeypatch.setattr(forksafe, "_checking", OtherThreadFirst())
    forksafe.check_process()
    assert calls == [owner]
