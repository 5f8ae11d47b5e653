"""``LmdbStore``: each call takes the lock within its time budget, works in one transaction and releases the lock."""

import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ...algorithms.limit import Limit
from ...algorithms.window_log import SlidingWindowLog, TieredWindow
from ...clock import Clock
from ...errors import ConfigError, StoreError
from ...forksafe import check_process
from ...receipt import Correction
from ..base import Facts, KeyPage
from ..budget import STARTING, ThreadClock
from ..twins import TwinStore
from ..unmade import UnmadeCorrections
from .address import check_size
from .decide import correct, decide
from .environment import environment_at
from .records import Records

# A hit writes the whole record, 16 bytes for each entry.
_MOST_ENTRIES: Final = {SlidingWindowLog.name: 5_000, TieredWindow.name: 10_000}
_ADVICE: Final = {
    SlidingWindowLog.name: 'Use algorithm = "tiered-window"',
    TieredWindow.name: "Use a larger precision",
}
_Result = TypeVar("_Result")


class LmdbStore(TwinStore):
    """Count all processes of one machine together, in an LMDB environment.

    Args:
        path: The directory of the environment. It is created at first use.
        size: The largest size of the file, in bytes.
        timeout_us: The time budget of a call in microseconds. A call that takes longer raises ``StoreError``.
        clock: Returns the time in microseconds. By default all processes of the machine share one clock.

    Raises:
        ConfigError: The size is too small, this process uses the path with another size, or this is not Linux.

    Example:
        ``limiter = Limiter(rules, store=LmdbStore("/var/lib/app/ratelimit"))``
    """

    def __init__(self, path: str, size: int = 1 << 30, timeout_us: int = 50_000, clock: Clock | None = None) -> None:
        if sys.platform != "linux":
            raise ConfigError(f"lmdb:// needs Linux, and this is {sys.platform}. Use redis:// or memory://")
        self.path = path
        self.name = f"lmdb://{path}"
        self._seconds = timeout_us / 1e6
        self._clock = clock
        self._budget = ThreadClock(self._seconds)
        self._unmade = UnmadeCorrections(self._correct_again)
        self._environment = environment_at(path, check_size(size) + -size % mmap.PAGESIZE)

    def check(self, limit: Limit) -> None:
        algorithm = limit.algorithm
        if isinstance(algorithm, TieredWindow) and min(limit.limit, algorithm.span) > _MOST_ENTRIES[algorithm.name]:
            most = f"{algorithm.name} keeps at most {_MOST_ENTRIES[algorithm.name]:,}"
            raise ConfigError(f"{most} entries per key on LMDB; got '{limit.quota}'. {_ADVICE[algorithm.name]}")

    _apply = staticmethod(decide)
    _correct = staticmethod(correct)
    _forget = staticmethod(Records.delete)
    _read_record = staticmethod(Records.read_document)
    _write_record = staticmethod(Records.write_document)
    _ping = staticmethod(Records.ping)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with self._keeping_unmade(changes, now):
            return super().correct(changes, now)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with self._keeping_unmade(changes, now):
            return await super().acorrect(changes, now)

    @contextmanager
    def _keeping_unmade(self, changes: Sequence[Correction], now: int | None) -> Iterator[None]:
        """Make the corrections later after an error, such as a lock that is not free: nothing was changed."""
        try:
            yield
        except StoreError:
            self._unmade.keep(changes, now)
            raise

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> Sequence[Correction]:
        try:
            super().correct(changes, now)
        except StoreError:
            return changes
        return ()

    def list_keys(self, prefix: str, place: str = "") -> KeyPage:
        return self._run(Records.list_keys, prefix, place)

    async def alist_keys(self, prefix: str, place: str = "") -> KeyPage:
        return await self._arun(Records.list_keys, prefix, place)

    def start(self) -> None:
        self._run(Records.ping, seconds=max(self._seconds, STARTING))

    async def astart(self) -> None:
        await self._arun(Records.ping, seconds=max(self._seconds, STARTING))

    def facts(self) -> Iterator[Facts]:
        yield Facts("lmdb", self.path, self._environment.facts())

    def close(self) -> None:
        """Close the files. The last process leaves them synced. The next call opens them again."""
        self._unmade.close()
        self._environment.close()

    def _run(self, work: Callable[..., _Result], *arguments: Any, seconds: float = 0.0) -> _Result:
        check_process()
        deadline = self._budget.now + (seconds or self._seconds)
        self._environment.lock.acquire(self._budget, deadline)
        try:
            return self._work(work, arguments)
        finally:
            self._environment.lock.release()

    async def _arun(self, work: Callable[..., _Result], *arguments: Any, seconds: float = 0.0) -> _Result:
        check_process()
        queue = self._environment.queue.get()
        return await queue.run(lambda: self._work(work, arguments), seconds or self._seconds)

    def _work(self, work: Callable[..., _Result], arguments: Sequence[Any]) -> _Result:
        return self._environment.run(lambda records: work(records, *arguments), self._clock)


def open_address(parsed: tuple[str, int], timeout_us: int) -> LmdbStore:
    return LmdbStore(*parsed, timeout_us)
