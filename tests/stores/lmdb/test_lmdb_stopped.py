"""The LMDB store when a process is stopped in its transaction: no other call waits longer than its time budget."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from lmdb_kit import FORK, decide_on, end, hit, limit_of, mark_of, open_at, start

from ratelimit_mw.decision import Hit
from ratelimit_mw.stores.lmdb import environment
from ratelimit_mw.stores.lmdb.store import LmdbStore

pytestmark = pytest.mark.slow


@contextmanager
def stopped_inside(path: Path) -> Iterator[Any]:
    """A process that is stopped in its transaction."""
    worker = start(FORK, decide_on, path, 7, signal.SIGSTOP)
    try:
        assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
        yield worker
    finally:
        end(worker)


def test_calls_fail_while_a_worker_is_stopped(tmp_path: Path) -> None:
    """Threads and tasks side by side. When the worker continues, all calls succeed again."""
    limit = limit_of("20/300 days", "signalling")

    async def many(store: LmdbStore) -> list[object]:
        calls = [*(store.aapply([Hit(limit, limit.prefix + "a", 1)]) for _ in range(5)), store.aforget(["x"])]
        return await asyncio.gather(*calls, return_exceptions=True)

    with closing(open_at(tmp_path, timeout_us=50_000)) as store, ThreadPoolExecutor(8) as pool:
        with closing(open_at(tmp_path)) as patient:
            assert hit(patient, limit).remaining == 19
        with stopped_inside(tmp_path) as worker:
            calls = [pool.submit(hit, store, limit) for _ in range(8)]
            calls += [pool.submit(store.forget, ["x"]), pool.submit(store.ping)]
            for error in [*(call.exception() for call in calls), *asyncio.run(many(store))]:
                assert "locked by other workers for longer than the time budget" in str(error)
            os.kill(worker.pid, signal.SIGCONT)
            worker.join()
            assert worker.exitcode == 0
        with closing(open_at(tmp_path)) as patient:
            assert hit(patient, limit).remaining == 11


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
