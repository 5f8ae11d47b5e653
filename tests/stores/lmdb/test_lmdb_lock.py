"""The lock of the LMDB store among the threads of one process."""

import threading
import time
from pathlib import Path

import pytest

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb.lock import FileLock


@pytest.fixture
def lock(tmp_path: Path) -> FileLock:
    return FileLock(str(tmp_path / "folder" / "lock"))


def test_one_thread_at_a_time(lock: FileLock) -> None:
    """Sixteen threads that take turns never meet inside."""
    inside, met = [], []

    def work() -> None:
        for _ in range(100):
            lock.acquire(20_000_000)
            inside.append(None)
            met.append(len(inside))
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (set(met), len(met)) == ({1}, 1_600)
    lock.close()


def test_a_thread_that_stays_inside_holds_others_for_the_budget(lock: FileLock) -> None:
    """Once it has left, the next one is in at once."""
    lock.acquire(0)
    began = time.monotonic()
    with pytest.raises(StoreError, match="longer than the time budget"):
        lock.acquire(20_000)
    assert 0.02 <= time.monotonic() - began < 10
    assert not lock.try_acquire()
    lock.release()
    lock.acquire(0)
    lock.release()
    lock.close()


def test_a_wait_that_is_broken_off_leaves_the_lock_free(lock: FileLock, tmp_path: Path) -> None:
    """Whatever ends it, as a folder that cannot be made does, the next one is not locked out by it."""
    (tmp_path / "folder").write_text("in the way")
    for _ in range(2):
        with pytest.raises(OSError, match="folder"):
            lock.acquire(1_000)
    (tmp_path / "folder").unlink()
    lock.acquire(0)
    lock.release()
    lock.close()
