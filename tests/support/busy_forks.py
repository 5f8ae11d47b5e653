"""Forks while threads are at work in a limiter, as a program: a test runner's own threads and tracers know no forks.

`python busy_forks.py SCENE REDIS`, REDIS being the address of a server; exit code 0 when what has to hold holds.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ratelimit_mw import Limiter, Rule
from ratelimit_mw import forksafe as forks
from ratelimit_mw.limiter.heartbeat import Heartbeat
from ratelimit_mw.stores import MemoryStore, open_store

WHO = {"ip": "192.0.2.7"}
OTHER = {"ip": "198.51.100.2"}
NOBODY = "redis://127.0.0.1:1"


def code_of(work: Callable[[], object]) -> int:
    """The exit code of a child that does this: 0 if what it gives is true; it is killed after 20 seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def busy(work: Callable[[], object]) -> Iterator[None]:
    """Three threads that do this without a pause."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            work()

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def served(work: Callable[[], object]) -> bool:
    """Forty forks beside the threads; every child does the same work, and gets to its end."""
    with busy(work):
        return [code_of(work) for _ in range(40)] == [0] * 40


def memory(_: str) -> bool:
    """Hits alone."""
    limiter = Limiter([Rule(name="busy", limits="100000000/hour")])
    return served(lambda: limiter.hit(WHO).allowed)


def refunds(_: str) -> bool:
    """What is noted on verdicts, and given back."""
    limiter = Limiter([Rule(name="busy", limits="100000000/hour")])

    def work() -> bool:
        verdict = limiter.hit(WHO)
        limiter.refund(verdict)
        return verdict.allowed

    return served(work)


def slots(_: str) -> bool:
    """What is held meanwhile, by a keeper that renews all the time."""
    limiter = Limiter([Rule(name="busy", limits="1000 concurrent")])
    limiter._afterwards._keeper = Heartbeat(limiter._afterwards._renew, between=0.0)

    def work() -> bool:
        with limiter.slot(WHO) as verdict:
            return verdict.allowed

    return served(work)


def away(_: str) -> bool:
    """A store that does not answer: its breaker."""
    limiter = Limiter([Rule(name="busy", limits="100000000/hour")], open_store(NOBODY))
    breaker = limiter._afterwards._shared.breaker  # type: ignore[union-attr]

    def work() -> bool:
        breaker.failed(0, 0)
        return limiter.hit(WHO).allowed

    return served(work)


def stuck(_: str) -> bool:
    """A thread stays inside the tables for longer than a fork waits: the child begins with tables of its own."""
    forks._SECONDS = 0.02  # type: ignore[misc]
    inside, over = threading.Event(), threading.Event()
    store = MemoryStore()
    limiter = Limiter([Rule(name="busy", limits="2/hour")], store)
    limiter.hit(WHO)

    def within() -> None:
        with store._lock:
            inside.set()
            over.wait(20)

    thread = threading.Thread(target=within)
    thread.start()
    inside.wait(20)
    try:
        anew = code_of(lambda: [limiter.hit(WHO).allowed for _ in range(3)] == [True, True, False])
    finally:
        over.set()
        thread.join()
    goes_on = code_of(lambda: [limiter.hit(WHO).allowed for _ in range(2)] == [True, False])
    return (anew, goes_on) == (0, 0) and limiter.hit(WHO).allowed and not limiter.hit(WHO).allowed


def twice(_: str) -> bool:
    """Threads that fork at the same time wait for each other, and all go on."""
    limiter = Limiter([Rule(name="busy", limits="100000000/hour")])
    codes: list[int] = []

    def work() -> None:
        limiter.hit(WHO)
        codes.append(code_of(lambda: limiter.hit(WHO).allowed))

    with busy(work):
        until(lambda: len(codes) >= 40)
    return not any(codes) and limiter.hit(WHO).allowed


def killed(address: str) -> bool:
    """A parent that holds a slot is killed: its child renews its own, and that of the parent ends."""
    now = multiprocessing.RawValue("q", 1_700_000_000_000_000)
    rule = Rule(name=f"killed-{os.getpid()}", limits="1 concurrent")
    limiter = Limiter([rule], open_store(address), clock=lambda: now.value)
    limiter._afterwards._keeper = Heartbeat(limiter._afterwards._renew, between=0.01)
    told, tells = os.pipe()
    parent = os.fork()
    if parent == 0:
        signal.alarm(60)
        with limiter.slot(WHO):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                with limiter.slot(OTHER):
                    os.write(tells, b"%d\n" % os.getpid())
                    time.sleep(60)
            time.sleep(60)
        os._exit(1)
    child = int(os.read(told, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        for _ in range(2):
            now.value += 40_000_000
            until(lambda: limiter.peek(OTHER, cost=0).decisions[0].reset_after == 60.0)
        return limiter.peek(WHO).allowed and not limiter.peek(OTHER).allowed
    finally:
        os.kill(child, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


SCENES = {each.__name__: each for each in (memory, refunds, slots, away, stuck, twice, killed)}

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of what is tested here
    sys.exit(not SCENES[sys.argv[1]](sys.argv[2]))
