"""Forks while threads use a limiter, in a separate program, because pytest's threads and tracers do not survive a fork.

`python busy_forks.py SCENE STORE`. STORE is the URL of a store. The exit code is 0 when the scene holds.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from forked import exit_code

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.clock import now_us
from ratelimit_mw.limiter import slots as slots_module
from ratelimit_mw.runtime import forksafe
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import MemoryStore, Store, open_store

CLIENT = {"ip": "192.0.2.7"}
OTHER = {"ip": "198.51.100.2"}
UNREACHABLE = "redis://127.0.0.1:1"


@contextmanager
def busy(work: Callable[[], object]) -> Iterator[None]:
    """Run three threads that repeat this work."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=repeat) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def served(work: Callable[[], object]) -> bool:
    """Return whether each of forty children, forked beside busy threads, completes the same work."""
    with busy(work):
        return [exit_code(work) for _ in range(40)] == [0] * 40


def limiter_on(store: Store | str, limits: str = "10000000/300 days", timeout_us: int = 20_000_000) -> Limiter:
    """Return a limiter that allows nothing without its store."""
    rule = Rule(name=f"busy-{os.getpid()}", limits=limits, algorithm="fixed-window", on_store_error="deny")
    opened = open_store(store, timeout_us) if isinstance(store, str) else store
    return Limiter([rule], opened, settings=Settings(fleet_size=1))


def refunds(store: str) -> bool:
    """Hits and refunds."""
    limiter = limiter_on(store)

    def work() -> bool:
        verdict = limiter.hit(CLIENT)
        limiter.refund(verdict)
        return verdict.allowed

    return served(work)


def slots(_: str) -> bool:
    """Use slots while the heartbeat renews them without a pause."""
    slots_module.SLOT_LIFE = 0  # type: ignore[misc]
    limiter = Limiter([Rule(name="busy", limits="1000 concurrent")])

    def work() -> bool:
        with limiter.slot(CLIENT) as verdict:
            return verdict.allowed

    return served(work)


def away(_: str) -> bool:
    """Use an unreachable store and its circuit breaker."""
    limiter = Limiter([Rule(name="busy", limits="100000000/hour")], open_store(UNREACHABLE))
    breaker = limiter.remote.breaker
    assert breaker is not None

    def work() -> bool:
        breaker.count_failure(breaker.epoch, 0)
        return limiter.hit(CLIENT).allowed

    return served(work)


def stuck(_: str) -> bool:
    """Hold the lock of the tables for longer than a fork waits. The child starts with empty tables."""
    forksafe._SECONDS = 0.02  # type: ignore[misc]
    inside, over = threading.Event(), threading.Event()

    def clock() -> int:
        if threading.current_thread() is thread:
            inside.set()
            over.wait(20)
        return now_us()

    limiter = limiter_on(MemoryStore(clock=clock), "2/300 days")
    thread = threading.Thread(target=limiter.hit, args=(OTHER,))
    limiter.hit(CLIENT)
    thread.start()
    inside.wait(20)
    try:
        anew = exit_code(lambda: [limiter.hit(CLIENT).allowed for _ in range(3)] == [True, True, False])
    finally:
        over.set()
        thread.join()
    goes_on = exit_code(lambda: [limiter.hit(CLIENT).allowed for _ in range(2)] == [True, False])
    return (anew, goes_on) == (0, 0) and limiter.hit(CLIENT).allowed and not limiter.hit(CLIENT).allowed


def ended(_: str) -> bool:
    """Drop a store while its locks are held for a fork, as the garbage collector may. This waits for no lock."""
    folder = TemporaryDirectory()
    stores = [MemoryStore(snapshot=f"{folder.name}/limits", snapshot_interval=600)]
    limiter_on(stores[0]).hit(CLIENT)

    class Collector:
        """A lock that is taken after those of the store."""

        def __init__(self) -> None:
            self.lock = forksafe.create_lock(self, "lock", lambda: self)

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            stores.clear()
            gc.collect()
            return True

        def release(self) -> None: ...

    collector = Collector()
    with folder:
        return exit_code(lambda: not stores) == 0 and collector.lock is collector and not stores


def twice(_: str) -> bool:
    """Fork in several threads at the same time."""
    limiter = limiter_on(MemoryStore())
    codes: list[int] = []

    def work() -> None:
        limiter.hit(CLIENT)
        codes.append(exit_code(lambda: limiter.hit(CLIENT).allowed))

    with busy(work):
        until(lambda: len(codes) >= 40)
    return not any(codes) and limiter.hit(CLIENT).allowed


def waiting(store: str) -> bool:
    """Fork while a thread is in its transaction for longer than a fork waits. The child is allowed or rejected."""
    forksafe._SECONDS = 0.02  # type: ignore[misc]
    inside, over = threading.Event(), threading.Event()
    decide = FixedWindow.decide

    def decide_late(self: FixedWindow, *arguments: Any) -> Any:
        if threading.current_thread() is thread:
            inside.set()
            over.wait(20)
        return decide(self, *arguments)

    FixedWindow.decide = decide_late  # type: ignore[method-assign]
    limiter = limiter_on(store, "2/300 days", 50_000)
    thread = threading.Thread(target=limiter.hit, args=(OTHER,))
    thread.start()
    try:
        inside.wait(20)
        threading.Timer(0.2, over.set).start()
        code = exit_code(lambda: limiter.hit(CLIENT) is not None)
    finally:
        over.set()
        thread.join()
    until(lambda: limiter.peek(OTHER, cost=0).decisions[0].remaining == 1)
    return code == 0


def without_hooks(store: str) -> bool:
    """Fork in C code like uWSGI: Python's hooks do not run, and the child opens the store itself."""
    limiter = limiter_on(store, "100/300 days")
    hits = [limiter.hit(CLIENT).decisions[0].hit]
    works = (lambda: limiter.hit(CLIENT).allowed, lambda: limiter.store.apply(hits)[0].allowed)
    codes = [exit_code(work, ctypes.PyDLL(None).fork) for work in works]
    return codes == [0, 0] and limiter.hit(CLIENT).decisions[0].remaining == 96


def killed(address: str) -> bool:
    """Kill a parent that holds a slot. The parent's slot ends, and the child renews its own slot."""
    now = multiprocessing.RawValue("q", 1_700_000_000_000_000)
    slots_module.SLOT_LIFE = 30_000  # type: ignore[misc]
    rule = Rule(name=f"killed-{os.getpid()}", limits="1 concurrent")
    limiter = Limiter([rule], open_store(address, timeout_us=20_000_000), clock=lambda: now.value)
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        signal.alarm(60)
        with limiter.slot(CLIENT):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                with limiter.slot(OTHER):
                    os.write(writes, b"%d\n" % os.getpid())
                    time.sleep(60)
            time.sleep(60)
        os._exit(1)
    child = int(os.read(reads, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        for _ in range(2):
            now.value += 40_000_000
            until(lambda: limiter.peek(OTHER, cost=0).decisions[0].reset_after == 60.0)
        return limiter.peek(CLIENT).allowed and not limiter.peek(OTHER).allowed
    finally:
        os.kill(child, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


SCENES = {each.__name__: each for each in (refunds, slots, away, stuck, ended, twice, waiting, without_hooks, killed)}

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
    sys.exit(not SCENES[sys.argv[1]](sys.argv[2]))
