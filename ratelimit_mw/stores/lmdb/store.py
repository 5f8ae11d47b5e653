"""``LmdbStore``: each call takes the lock within its time budget, works in one transaction and releases the lock."""

import mmap
import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar

from ...algorithms.window_log import SlidingWindowLog, TieredWindow
from ...clock import Clock
from ...decision import Correction
from ...errors import ConfigError, StoreError
from ...runtime.blocking import forms
from ...runtime.forksafe import check_process
from ..bytestore import ByteStore
from .address import check_size
from .environment import environment_at
from .records import LmdbCall


class LmdbStore(ByteStore):
    """Count all processes of one machine together, in an LMDB environment.

    Args:
        path: The directory of the environment. It is created at first use.
        size: The largest size of the file, in bytes. Of the stores of one path in a process, the largest one counts.
        timeout_us: The time budget of a call in microseconds. A call that takes longer raises ``StoreError``.
        clock: Returns the time in microseconds. By default all processes of the machine share one clock.

    Raises:
        ConfigError: The size is too small, or this is not Linux.

    Example:
        ``limiter = Limiter(rules, store=LmdbStore("/var/lib/app/ratelimit"))``
    """

    _title = LmdbCall.title
    _most_entries: ClassVar = {SlidingWindowLog.name: 5_000, TieredWindow.name: 10_000}  # of 16 bytes

    def __init__(self, path: str, size: int = 1 << 30, timeout_us: int = 50_000, clock: Clock | None = None) -> None:
        if sys.platform != "linux":
            raise ConfigError(f"lmdb:// needs Linux, and this is {sys.platform}. Use redis:// or memory://")
        super().__init__(timeout_us)
        self.path = path
        self.name = f"lmdb://{path}"
        self._given_clock = clock
        self._environment = environment_at(path, check_size(size) + -size % mmap.PAGESIZE)

    list_keys, alist_keys = forms(ByteStore.list_keys)

    def close(self) -> None:
        """Close the files. The last process leaves them synced. The next call opens them again."""
        super().close()
        self._environment.close()

    def _run(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        check_process()
        try:
            return self._run_locked(methodcaller(operation, *arguments, **options), seconds or self._seconds)
        except StoreError:
            self._keep_unmade(operation, *arguments, **options)
            raise

    def _run_locked(self, work: Callable[[LmdbCall], Any], seconds: float) -> Any:
        lock, clock = self._environment.lock, self._thread_driver.clock
        lock.acquire(clock, clock.now + seconds)
        try:
            return self._environment.run(work, self._given_clock)
        finally:
            lock.release()

    async def _arun(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        check_process()
        work = partial(self._environment.run, methodcaller(operation, *arguments, **options), self._given_clock)
        try:
            return await self._environment.queue.get().run(work, seconds or self._seconds)
        except StoreError:
            self._keep_unmade(operation, *arguments, **options)
            raise

    def _keep_unmade(self, operation: str, changes: Any = (), now: int | None = None, *_: Any, **__: Any) -> None:
        """Make corrections later after an error, such as a lock that is not free: nothing was changed."""
        if operation == "correct":
            self._unmade.keep(changes, now)

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> Sequence[Correction]:
        try:
            self._run_locked(methodcaller("correct", changes, now), self._seconds)
        except StoreError:
            return changes
        return ()


def open_address(parsed: tuple[str, int], timeout_us: int) -> LmdbStore:
    return LmdbStore(*parsed, timeout_us)
