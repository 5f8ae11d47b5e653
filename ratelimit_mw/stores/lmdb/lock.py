"""One lock for the threads of a process and the processes of a machine, taken within a time budget or not at all.

LMDB's own write lock waits for ever, so a worker that is stopped while it holds it would stop all the others. This
one is taken before it, and only ever tried: who does not get it in time raises ``StoreError``. It is a record lock on
a file, which the kernel takes from a process that dies, and which a forked child does not inherit.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from typing import Final

from ...errors import StoreError

__all__ = ["FileLock"]

_WRITER: Final = 0
"""The byte of the file that is locked by who works in the store; the next one, shared, by who has it open."""
_OPENED: Final = 1
# Others are done in some ten microseconds, which eight tries take too.
_TRIES: Final = 8
# Short at first, as the lock is seldom held; longer when many want it: whoever takes turns less often gets more done.
_PAUSES: Final = (0.00005, 0.0001, 0.0002, 0.0004)


class FileLock:
    """A lock on the file at ``path``, which is made when it is first asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self._threads = threading.Lock()

    def acquire(self, budget_us: int) -> None:
        """``StoreError`` when others hold it for longer than the budget."""
        if not self.try_acquire():
            self._wait(time.monotonic() + budget_us / 1e6)

    def try_acquire(self) -> bool:
        """Take it if it is free."""
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
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, _WRITER)
        finally:
            self._threads.release()

    def _wait(self, deadline: float) -> None:
        """Threads queue for the process's turn; whose turn it is asks for the file again and again."""
        if not self._threads.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self.too_late()
        try:
            for pause in _pauses():
                if self._take():
                    return
                if pause:
                    if time.monotonic() >= deadline:
                        raise self.too_late()
                    time.sleep(pause)
        except BaseException:
            self._threads.release()
            raise

    def _take(self) -> bool:
        try:
            fcntl.lockf(self.fd if self.fd >= 0 else self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
        except (BlockingIOError, PermissionError):
            if self.fd < 0:
                raise
            return False
        return True

    def _open(self) -> int:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - paths are text here
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self.fd

    def too_late(self) -> StoreError:
        """What to tell those whose time is over."""
        return StoreError(f"{self.path} was locked by others for longer than the time budget")

    # -- who has the store open; asked by the holder of the lock ---------------------------------------------

    def join(self) -> None:
        """Be one of those who have it open."""
        fcntl.lockf(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _OPENED)

    def leave(self) -> None:
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, _OPENED)

    def alone(self) -> bool:
        """Whether no other process has it open."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OPENED)
        except (BlockingIOError, PermissionError):
            return False
        return True

    # -- forks and the end ----------------------------------------------------------------------------------

    def hold_threads(self, seconds: float) -> bool:
        """Keep the threads of this process out, for a fork; whether that was possible in time."""
        return self._threads.acquire(timeout=seconds)

    def let_threads(self) -> None:
        self._threads.release()

    def forget_parent(self) -> None:
        """In a forked child: nothing is held, nothing is open. Closing the child's copy unlocks nothing."""
        self._threads = threading.Lock()
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _pauses() -> Iterator[float]:
    """Seconds to sleep between one try and the next."""
    for _ in range(_TRIES):
        yield 0.0
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
