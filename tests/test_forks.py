"""Forks: a child process is served whatever the threads of its parent were doing, and uses nothing of its parent."""

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
from folders import SUPPORT
from forked import become_child, exit_code
from redis_handles import address
from servers import Server, wait_for

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.decision import Verdict
from ratelimit_mw.runtime import forksafe
from ratelimit_mw.runtime.heartbeat import Heartbeat
from ratelimit_mw.stores import MemoryStore, open_store

CLIENT = {"ip": "192.0.2.7"}
SCENES = ["refunds", "slots", "stuck", "ended", "without_hooks", "killed"]
RARE = [pytest.param(name, marks=pytest.mark.thorough) for name in ("away", "twice")]


@pytest.mark.slow
@pytest.mark.parametrize("scene", [*SCENES, *RARE])
def test_no_child_waits_for_a_lock_of_its_parent(redis_server: Server, scene: str) -> None:
    """Each scene forks a real process beside real threads. No child waits for a lock that stays locked."""
    store = address(redis_server) if scene in ("without_hooks", "killed") else "memory://"
    program = SUPPORT / "busy_forks.py"
    assert subprocess.run([sys.executable, program, scene, store], timeout=200, check=False).returncode == 0


class Owner:
    """An object to register."""

    lock: threading.Lock


def test_child_starts_empty_when_a_thread_was_changing_the_tables() -> None:
    """A child keeps the parent's counts, unless a thread held the lock of the tables during the fork."""
    forks: list[Callable[[], None]] = []

    def clock() -> int:
        """Return the time. Threads read it while they hold the lock."""
        if forks:
            forks.pop()()
        return 10**15

    limiter = Limiter([Rule(name="child", limits="2/hour")], MemoryStore(clock=clock))
    verdict = limiter.hit(CLIENT)
    become_child()
    assert [limiter.hit(CLIENT).allowed for _ in range(2)] == [True, False]
    forks.append(become_child)
    limiter.refund(verdict)
    assert [limiter.hit(CLIENT).allowed for _ in range(3)] == [True, True, False]


def test_child_does_not_renew_the_slots_of_its_parent(no_threads: pytest.MonkeyPatch) -> None:
    """The heartbeat of a child renews only the slots taken after the fork."""
    renewed: list[Verdict] = []
    parents, own = Verdict(), Verdict()
    heartbeat = Heartbeat(renewed.append, 0.01, "renew slots", "they end")
    heartbeat.hold(parents)
    no_threads.undo()
    become_child()
    heartbeat.hold(own)
    wait_for(lambda: len(renewed) > 1, "two beats")
    heartbeat.close()
    assert set(renewed) == {own}


def test_callbacks_end_with_their_owner() -> None:
    """The table does not grow with limiters that no longer exist, and does not keep them alive."""

    class Callback:
        def __call__(self, *_: object) -> None: ...

    owner, callback = Owner(), Callback()
    owner.lock = forksafe.create_lock(owner, "lock", threading.Lock, callback)
    forksafe.run_in_child(owner, callback)
    kept = ref(callback)
    del callback
    gc.collect()
    assert kept() is not None
    del owner
    gc.collect()
    assert kept() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_fork_leaves_the_parent_unchanged() -> None:
    """Locks taken for a fork are released in both. An owner whose lock is not assigned yet is skipped."""
    calls: list[object] = []
    unfinished, owner = Owner(), Owner()
    for each in (unfinished, owner):
        lock = forksafe.create_lock(each, "lock", threading.Lock, lambda *given: calls.append(given))
    owner.lock = lock
    assert exit_code(lambda: calls == [(owner, True)] and not lock.locked()) == 0
    assert not lock.locked()
    assert not calls


def test_the_first_call_of_a_child_drops_the_connections_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork without Python's hooks, the first call of a store runs the callbacks, and no other call does."""
    store: Any = open_store("memcached://127.0.0.1:1")
    drivers = [store._thread_driver]
    for process in (forksafe.process, -1, forksafe.process):
        monkeypatch.setattr(forksafe, "process", process)
        with pytest.raises(StoreError):
            store.ping()
        drivers.append(store._thread_driver)
    assert [drivers.index(each) for each in drivers] == [0, 0, 2, 2]
    store.close()


def test_a_thread_that_waited_does_not_repeat_the_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork without Python's hooks, the callbacks run once, although two threads notice the fork."""
    owner, calls, pid = Owner(), list[object](), os.getpid()
    forksafe.run_in_child(owner, calls.append)
    looks, here = iter([-1]), threading.current_thread()
    monkeypatch.setattr(os, "getpid", lambda: next(looks, pid) if threading.current_thread() is here else pid)
    forksafe.check_process()
    assert next(looks, None) is None, "it has found another process, and waited for the thread that runs the callbacks"
    assert calls == []
