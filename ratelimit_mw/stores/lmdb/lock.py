"""One lock for all threads and processes of a machine that use one environment, with a deadline.

LMDB's own write lock has no time limit: a worker that is stopped while it holds that lock stops all others. So this
lock is taken first, and a call that does not get it in time raises ``StoreError``. It is a record lock on a file. The
kernel releases it when its process dies, and a forked child does not inherit it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Final

from ...errors import StoreError
from ...forksafe import create_lock

__all__ = ["FileLock"]

# Another process holds the lock for some ten microseconds, as long as eight tries take.
_TRIES: Final = 8
# Short at first, as the lock is mostly free. Then longer: processes that switch less often get more done.
_PAUSES: Final = (0.00005, 0.0001, 0.0002, 0.0004)


class FileLock:
    """A lock on the first byte of the file at ``path``, which is created at first use."""

    def __init__(self, path: str, after_fork: Callable[[bool], object] = bool) -> None:
        self.path = path
        self.fd = -1
        self._after_fork = after_fork
        self._threads = create_lock(self, "_threads", threading.Lock, FileLock._forget_parent)

    def acquire(self, deadline: float) -> None:
        """Take the lock; ``StoreError`` when the monotonic clock reaches ``deadline`` (seconds) first."""
        if self.try_acquire():
            return
        if not self._threads.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self.timed_out()
        try:
            for pause in chain(repeat(0.0, _TRIES), _PAUSES, repeat(_PAUSES[-1])):
                if self._take():
                    return
                if pause:
                    if time.monotonic() >= deadline:
                        raise self.timed_out()
                    time.sleep(pause)
        except BaseException:
            self._threads.release()
            raise

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        if not self._threads.acquire(False):
            return False
        taken = False
        try:
            taken = self._take()
        finally:
            if not taken:
                self._threads.release()
        return taken

    def release(self) -> None:
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file, which releases whatever this process has locked in it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def timed_out(self) -> StoreError:
        return StoreError(f"{self.path} was locked by other workers for longer than the time budget (store_timeout)")

    def _take(self) -> bool:
        if self.fd < 0:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - paths are text here
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _forget_parent(self, intact: bool) -> None:
        """In a child: close the parent's file. That does not release the parent's locks."""
        self.close()
        self._after_fork(intact)
