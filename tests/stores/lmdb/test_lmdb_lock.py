"""The lock of the LMDB store among the threads of one process."""

import threading
import time
from pathlib import Path

import pytest

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb.lock import FileLock


@pytest.fixture
def lock(tmp_path: Path) -> FileLock:
    return FileLock(tmp_path / "folder" / "lock")


def test_one_thread_at_a_time(lock: FileLock) -> None:
    """Of sixteen threads that take turns, never two hold the lock."""
    inside, met = [], []

    def work() -> None:
        for _ in range(100):
            lock.acquire(time.monotonic() + 60)
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


def test_wait_ends_at_the_deadline(lock: FileLock) -> None:
    """A second caller gets a StoreError, not before its deadline. After a release the lock is free."""
    lock.acquire(0)
    deadline = time.monotonic() + 0.02
    with pytest.raises(StoreError, match="longer than the time budget"):
        lock.acquire(deadline)
    assert time.monotonic() >= deadline
    assert not lock.try_acquire()
    lock.release()
    lock.acquire(0)
    lock.release()
    lock.close()


def test_failed_wait_leaves_the_lock_free(lock: FileLock, tmp_path: Path) -> None:
    """An error, such as a folder that cannot be created, does not lock out the next caller."""
    (tmp_path / "folder").write_text("in the way")
    for _ in range(2):
        with pytest.raises(StoreError, match="folder"):
            lock.acquire(time.monotonic() + 0.001)
    (tmp_path / "folder").unlink()
    lock.acquire(0)
    lock.release()
    lock.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """The lock writes into its file, so a link in a shared folder must not direct it to another file."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "linked").symlink_to(victim)
    with pytest.raises(StoreError, match="linked"):
        FileLock(tmp_path / "linked").acquire(time.monotonic())
    assert victim.read_text() == "kept"
