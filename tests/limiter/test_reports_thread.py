"""The thread that reports: it starts with the first busy key, and ends when no key is busy."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

WHO = {"ip": "192.0.2.7"}
PATIENCE = 180.0
RULE = Rule(name="api", limits="1000/day", algorithm="fixed-window", consistency="reported")


def rest(store: SharedStore, limiter: Limiter) -> int:
    hits = limiter.match(WHO).hits(WHO, 0)
    return store.states.apply(hits, consume=False)[0].remaining


def thread_of(limiter: Limiter) -> threading.Thread | None:
    """Return the thread that reports for this limiter. Other tests of the process may have left theirs."""
    return limiter._leases._beat._thread  # type: ignore[union-attr]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_thread_reports_and_ends(is_async: bool) -> None:
    """Requests of threads and of an event loop are reported alike, without another request."""
    store = SharedStore()
    limiter = Limiter([RULE], store, settings=Settings(fleet_size=1))
    for _ in range(100):
        assert asyncio.run(limiter.ahit(WHO)) if is_async else limiter.hit(WHO)
    until = time.monotonic() + PATIENCE
    while rest(store, limiter) != 900 or limiter._leases._reports.accounts:  # type: ignore[union-attr]
        assert time.monotonic() < until
        time.sleep(0.01)
    while thread_of(limiter):
        assert time.monotonic() < until
        time.sleep(0.01)
    limiter.close()


def test_close_ends_the_thread() -> None:
    """The last sum is reported before."""
    store = SharedStore()
    limiter = Limiter([RULE], store, settings=Settings(fleet_size=1))
    limiter._leases._beat._interval = 3600.0  # type: ignore[union-attr] # not before, on a machine that pauses the test
    for _ in range(50):
        limiter.hit(WHO)
    thread = thread_of(limiter)
    assert thread
    limiter.close()
    assert rest(store, limiter) == 950
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_threads_share_an_account_exactly() -> None:
    """Eight threads of one process get the limit and not one more."""
    store = SharedStore()
    limiter = Limiter([RULE], store, settings=Settings(fleet_size=1, rejection_cache=0))
    allowed: list[int] = []

    def work() -> None:
        allowed.append(sum(limiter.hit(WHO).allowed for _ in range(400)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limiter.close()
    assert sum(allowed) == 1000
    assert rest(store, limiter) == 0
