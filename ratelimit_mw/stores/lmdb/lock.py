"""One lock for all threads and processes of a machine that use one environment, with a deadline.

LMDB's own write lock has no time limit: a worker that is stopped while it holds that lock stops all others. So this
lock is taken first, and a call that does not get it in time raises ``StoreError``. It is a record lock on a file. The
kernel releases it when its process dies, and a forked child does not inherit it.

The calls of one event loop wait in a ``LockQueue``, and the call that gets the lock runs all others too. A loop can
try the lock once a millisecond. If each call took it for itself, most would time out when several processes are busy.
"""

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Final, TypeVar

from ...errors import StoreError
from ...forksafe import create_lock

# Another process holds the lock for some ten microseconds, as long as eight tries take.
_TRIES: Final = 8
# Short at first, as the lock is mostly free. Then longer: processes that switch less often get more done.
_PAUSES: Final = (0.00005, 0.0001, 0.0002, 0.0004)
_LOOP_PAUSE: Final = 0.001  # The shortest sleep of an event loop.
_MAX_CALLS: Final = 100
# The boot is written into the file, so a link could direct that to any file of this user.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_Result = TypeVar("_Result")


class FileLock:
    """A lock on the first byte of the file at ``path``, which is created at first use."""

    def __init__(self, path: Path, after_fork: Callable[[bool], object] = bool) -> None:
        self._path = path
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
        if not self._threads.acquire(False):
            return False
        taken = False
        try:
            taken = self._take()
        finally:
            if not taken:
                self._threads.release()
        return taken

    def release(self, close: bool = False) -> None:
        try:
            if close:
                self.close()
            else:
                fcntl.lockf(self.fd, fcntl.LOCK_UN, 1)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file, which releases whatever this process has locked in it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def timed_out(self) -> StoreError:
        return StoreError(f"{self._path} was locked by other workers for longer than the time budget (store_timeout)")

    def _take(self) -> bool:
        try:
            if self.fd < 0:
                self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
                self.fd = os.open(self._path, _FLAGS, 0o600)
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreError(f"lmdb://{self._path.parent} failed: {type(error).__name__}: {error}") from error
        return True

    def _forget_parent(self, intact: bool) -> None:
        """Close the parent's file in a child. That does not release the parent's locks."""
        self.close()
        self._after_fork(intact)


class LockQueue:
    """Runs work under the lock without blocking its event loop."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._turn = asyncio.Lock()
        self._calls: dict[asyncio.Future[Any], Callable[[], Any]] = {}

    async def run(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """Run the work under the lock and return its result; ``StoreError`` if the lock is not free in time."""
        call: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._calls[call] = work
        try:
            if not self._run_all(call):
                async with asyncio.timeout(seconds), self._turn:
                    pauses = chain(repeat(0.0, _TRIES), repeat(_LOOP_PAUSE))
                    while not call.done() and not self._run_all(call):
                        await asyncio.sleep(next(pauses))
        except TimeoutError:
            if not call.done():
                raise self._lock.timed_out() from None
        finally:
            del self._calls[call]
            call.cancel()  # Without effect on a result. Without it, asyncio logs errors of calls that were cancelled.
        return call.result()

    def _run_all(self, call: asyncio.Future[Any]) -> bool:
        """Run this call and the calls that wait longest if the lock is free."""
        if not self._lock.try_acquire():
            return False
        try:
            for each in (call, *islice(self._calls, _MAX_CALLS)):
                if not each.done():
                    try:
                        each.set_result(self._calls[each]())
                    except Exception as error:
                        each.set_exception(error)
        finally:
            self._lock.release()
        return True
