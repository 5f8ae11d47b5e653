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

from ...clock import machine
from ...errors import StoreError
from ...runtime.forksafe import create_lock
from ..budget import LoopClock, ThreadClock

# Another process holds the lock for some ten microseconds, as long as eight tries take.
_TRIES: Final = 8
# Short at first, as the lock is mostly free. Then longer: processes that switch less often get more done.
_PAUSES: Final = (0.00005, 0.0001, 0.0002, 0.0004)
_LOOP_PAUSE: Final = 0.001  # The shortest sleep of an event loop.
_MAX_CALLS: Final = 100
# The boot is written into the file, so a link could make the store overwrite any file of this user.
FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LOOP_BUDGET: Final = 0.05  # a busy turn of the loop uses up a twentieth of this
_Result = TypeVar("_Result")


class FileLock:
    """A lock on the first byte of the file at ``path``, which is created at first use."""

    def __init__(self, path: Path, after_fork: Callable[[bool], object] = bool) -> None:
        self._path = path
        self.fd = -1
        self._after_fork = after_fork
        self._holder = 0
        """The thread of this process that has the lock or waits for the file."""
        self._is_waiting = False
        self._blocked = 0.0
        """How long threads of this process have waited for another process, since they last had the lock."""
        self._threads = create_lock(self, "_threads", threading.Lock, FileLock._forget_parent)

    def acquire(self, clock: ThreadClock, deadline: float) -> None:
        """Take the lock; ``StoreError`` when other processes keep it until ``deadline``, a time of the clock.

        A thread of this process that has the lock is alive and may wait for the GIL. A wait for it uses up no budget.
        """
        if self.try_acquire():
            return
        if self._holder == threading.get_ident():  # a signal handler, or a finalizer, within a transaction
            raise self.timed_out()
        began = machine.monotonic()
        self._threads.acquire()
        clock.count(began, self._blocked)
        start = clock.now
        self._holder, self._is_waiting = threading.get_ident(), True
        is_taken = False
        try:
            for pause in chain(repeat(0.0, _TRIES), _PAUSES, repeat(_PAUSES[-1])):
                if is_taken := self._take():
                    return
                began = machine.monotonic()
                if pause:
                    time.sleep(pause)
                if clock.count(began, 2 * pause) >= deadline:
                    self._blocked += clock.now - start
                    raise self.timed_out()
        finally:
            self._is_waiting = False
            if not is_taken:
                self._release_threads()

    def try_acquire(self) -> bool:
        if not self._threads.acquire(False):
            return False
        self._holder, is_taken = threading.get_ident(), False
        try:
            is_taken = self._take()
        finally:
            if not is_taken:
                self._release_threads()
        return is_taken

    @property
    def has_live_holder(self) -> bool:
        """Whether another thread of this process has the lock, and does not wait for a process itself."""
        return self._holder not in (0, threading.get_ident()) and not self._is_waiting

    def release(self, close: bool = False) -> None:
        try:
            if close:
                self.close()
            else:
                fcntl.lockf(self.fd, fcntl.LOCK_UN, 1)
        finally:
            self._release_threads()

    def _release_threads(self) -> None:
        self._holder = 0
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
                self.fd = os.open(self._path, FLAGS, 0o600)
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreError(f"lmdb://{self._path.parent} failed: {type(error).__name__}: {error}") from error
        self._blocked = 0.0
        return True

    def _forget_parent(self, intact: bool) -> None:
        """Begin anew in a child, which has no locks of its parent. A daemon closes all files that it has inherited."""
        self.close()
        self._holder, self._is_waiting = 0, False
        self._after_fork(intact)


class LockQueue:
    """Runs work under the lock without blocking its event loop."""

    def __init__(self, lock: FileLock) -> None:
        self.clock = LoopClock(_LOOP_BUDGET)
        """The clock of the time budgets of the calls."""
        self._lock = lock
        self._turn = asyncio.Lock()
        self._calls: dict[asyncio.Future[Any], Callable[[], Any]] = {}

    async def run(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """Run the work under the lock and return its result; ``StoreError`` if the lock is not free in time."""
        call: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._calls[call] = work
        try:
            if not self._run_all(call):
                self.clock.watch(call, self.clock.now + seconds)
                async with self._turn:  # whose holder runs this call, too, and has the earlier deadline
                    pauses = chain(repeat(0.0, _TRIES), repeat(_LOOP_PAUSE))
                    while not call.done() and not self._run_all(call):
                        await self._pause(next(pauses))
            return call.result()
        except TimeoutError:
            raise self._lock.timed_out() from None
        finally:
            del self._calls[call]
            call.cancel()  # Without effect on a result. Without it, asyncio logs errors of calls that were cancelled.

    async def _pause(self, seconds: float) -> None:
        """Wait until the next try. Waiting for a thread of this process uses up no budget."""
        began, is_free = self.clock.now, self._lock.has_live_holder
        await asyncio.sleep(seconds)
        if is_free:
            self.clock.now = began

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
