"""The LMDB store when a process is stopped in its transaction: no other call waits longer than its time budget."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lmdb_kit import FORK, decide_on, end, hit, limit_of, mark_of, open_at, start
from own_time import own_seconds

from ratelimit_mw.decision import Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb import environment
from ratelimit_mw.stores.lmdb.store import LmdbStore

pytestmark = pytest.mark.slow

BUDGET, GRACE = 0.050, 0.020
TRIES = 20


@contextmanager
def stopped_inside(path: Path) -> Iterator[Any]:
    """A process that is stopped in its transaction."""
    worker = start(FORK, decide_on, path, 7, signal.SIGSTOP)
    try:
        assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
        yield worker
    finally:
        end(worker)


def seconds_until_rejected(call: Callable[[], object]) -> float:
    """The time of a call that ends with ``StoreError``: the best of some tries, as a busy machine delays some."""
    times = []
    for _ in range(TRIES):
        began = own_seconds()
        with pytest.raises(StoreError, match="locked by other workers for longer than the time budget"):
            call()
        times.append(own_seconds() - began)
        if times[-1] <= BUDGET + GRACE:
            break
    return min(times)


@pytest.mark.thorough
def test_stopped_worker_delays_calls_by_at_most_their_budget(tmp_path: Path) -> None:
    """Each call raises a StoreError in time. When the worker continues, all calls succeed again."""
    limit = limit_of("20/300 days", "signalling")
    with closing(open_at(tmp_path, timeout_us=50_000)) as store:
        assert hit(store, limit).remaining == 19
        with stopped_inside(tmp_path) as worker:
            for call in (lambda: hit(store, limit), lambda: store.forget(["x"]), store.ping):
                assert seconds_until_rejected(call) <= BUDGET + GRACE
            os.kill(worker.pid, signal.SIGCONT)
            worker.join()
            assert worker.exitcode == 0
        assert hit(store, limit).remaining == 11


@pytest.mark.thorough
def test_stopped_worker_does_not_block_an_event_loop(tmp_path: Path) -> None:
    """The loop runs while calls wait. When the worker is killed, the lock is free and its hit is not counted."""
    limit = limit_of("20/300 days", "signalling")

    async def wait(store: LmdbStore) -> tuple[list[object], float, float]:
        longest, began = 0.0, own_seconds()
        calls = asyncio.gather(
            *(store.aapply([Hit(limit, limit.prefix + "a", 1)]) for _ in range(5)),
            store.aforget(["x"]),
            return_exceptions=True,
        )
        while not calls.done():
            turn = own_seconds()
            await asyncio.sleep(0)
            longest = max(longest, own_seconds() - turn)
        return calls.result(), longest, own_seconds() - began

    def stall_and_time(store: LmdbStore) -> tuple[float, float]:
        results, longest, took = asyncio.run(wait(store))
        assert [type(result) for result in results] == [StoreError] * 6
        return longest, took

    with closing(open_at(tmp_path, timeout_us=50_000)) as store:
        hit(store, limit)
        stall = took = 1.0
        with stopped_inside(tmp_path):
            for _ in range(TRIES):
                stall, took = map(min, zip((stall, took), stall_and_time(store), strict=True))
                if stall <= GRACE and took <= BUDGET + GRACE:
                    break
        assert stall <= GRACE
        assert took <= BUDGET + GRACE
        assert hit(store, limit).remaining == 18, "the hit of the killed worker was not counted"


def test_threads_wait_for_a_stopped_worker_side_by_side(tmp_path: Path) -> None:
    """The budgets of 24 threads do not run one after the other."""
    with closing(open_at(tmp_path, timeout_us=300_000)) as store, ThreadPoolExecutor(24) as pool:
        hit(store, limit_of("20/300 days"))
        took = []
        with stopped_inside(tmp_path):
            while len(took) < 5 and (not took or min(took) >= 3.6):  # a busy machine makes some of them slow
                began = time.monotonic()
                calls = [pool.submit(hit, store, limit_of("20/300 days")) for _ in range(24)]
                assert [type(call.exception()) for call in calls] == [StoreError] * 24
                took.append(time.monotonic() - began)
        assert min(took) < 3.6, "half of what they would take one after the other"


def test_closing_does_not_wait_for_a_stopped_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server can end while a worker is stopped. The mark stays, and the process can use the path again."""
    monkeypatch.setattr(environment, "_CLOSING_SECONDS", 0.05)
    store = open_at(tmp_path)
    hit(store, limit_of("20/300 days"))
    with stopped_inside(tmp_path):
        store.close()
    assert mark_of(tmp_path)
    with closing(open_at(tmp_path)) as store:
        assert hit(store, limit_of("20/300 days")).remaining == 18
