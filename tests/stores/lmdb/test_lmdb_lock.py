"""The lock of the LMDB store among the threads of one process."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from lmdb_kit import held_elsewhere, hit, limit_of, open_at
from servers import wait_for

from ratelimit_mw.decision import Correction
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.budget import ThreadClock
from ratelimit_mw.stores.lmdb.lock import FileLock
from ratelimit_mw.testing.store_suite import WAYS


def acquire(lock: FileLock, seconds: float = 60) -> None:
    clock = ThreadClock(seconds)
    lock.acquire(clock, seconds)


def take_and_release(lock: FileLock) -> bool:
    acquire(lock, 0.001)
    lock.release()
    return True


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FileLock]:
    with closing(FileLock(tmp_path / "folder" / "lock")) as found:
        yield found


def test_one_thread_at_a_time(lock: FileLock) -> None:
    """Of sixteen threads that take turns, never two hold the lock."""
    inside, met = [], []

    def work(_: int) -> None:
        for _ in range(100):
            acquire(lock)
            inside.append(None)
            met.append(len(inside))
            inside.pop()
            lock.release()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert (set(met), len(met)) == ({1}, 1_600)


def test_wait_for_another_process_ends_at_the_deadline(lock: FileLock) -> None:
    """Callers get a StoreError, not before their deadline. After a release the lock is free."""
    with held_elsewhere(lock):
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StoreError, match="longer than the time budget"):
                acquire(lock, 0.02)
            assert time.monotonic() - began >= 0.02
        assert not lock.try_acquire()
    acquire(lock, 0)
    lock.release()


@pytest.mark.parametrize("way", WAYS)
def test_a_correction_that_waits_too_long_is_made_later(tmp_path: Path, way: str) -> None:
    """The caller gets a StoreError. The store makes the correction when the lock is free, however many tries fail."""
    tries: list[object] = []
    limit = limit_of("5/hour", "gcra")
    store, lock = open_at(tmp_path, 100_000), FileLock(tmp_path / "ratelimit_mw.lock")
    handle = WAYS[way](store)
    charge = Correction(limit, f"{limit.prefix}a", 3, None)
    retry = store._unmade._correct
    store._unmade._correct = lambda *given: tries.append(given) or retry(*given)
    with held_elsewhere(lock):
        with pytest.raises(StoreError, match="longer than the time budget"):
            handle.correct([charge])
        wait_for(lambda: len(tries) > 1, "a try that failed")
    wait_for(lambda: hit(store, limit, cost=0).remaining == 2, "the correction")
    handle.close()


def test_wait_for_a_thread_uses_up_no_budget(lock: FileLock) -> None:
    """The thread lives, and may only lack the GIL."""
    acquire(lock)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(take_and_release, lock) for _ in range(8)]
        time.sleep(0.05)
        assert not any(call.done() for call in calls)
        lock.release()
        assert [call.result() for call in calls] == [True] * 8


def test_thread_does_not_wait_for_itself(lock: FileLock) -> None:
    """A signal handler that runs within a transaction gets a StoreError."""
    acquire(lock)
    with pytest.raises(StoreError):
        acquire(lock)
    lock.release()


@pytest.mark.parametrize("file", ["data.mdb", "lock.mdb", "ratelimit_mw.lock"])
def test_a_link_is_not_followed(tmp_path: Path, file: str) -> None:
    """The store and LMDB write into their files, so a link in a shared folder must not direct them to another file."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / file).symlink_to(victim)
    message = file if file == "ratelimit_mw.lock" else f"{file} is a symbolic link"
    with pytest.raises(StoreError, match=message):
        hit(open_at(tmp_path / "store"), limit_of("2/hour", "token-bucket"))
    assert victim.read_text() == "kept"
