"""``LmdbStore``: each call takes the lock within its time budget, works in one transaction and releases the lock."""

import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeVar

from ...clock import Clock
from ...decision import Decision, Hit
from ...errors import ConfigError
from ...forksafe import check_process
from ...receipt import Correction
from ..base import KeyPage, Store, record_key
from ..budget import STARTING, ThreadClock
from ..facts import Facts
from .address import check_size
from .decide import correct, decide
from .environment import environment_at
from .facts import values_of
from .records import Records

_Result = TypeVar("_Result")
_Work = Callable[[Records], _Result]


class LmdbStore(Store):
    """Count all processes of one machine together, in an LMDB environment.

    Args:
        path: The directory of the environment. It is created at first use.
        size: The largest size of the file, in bytes.
        durable: Sync each change to the disk before its call returns. Otherwise the counts survive every process, but
            start at zero when the machine stops without a shutdown.
        timeout_us: The time budget of a call in microseconds. A call that takes longer raises ``StoreError``.
        clock: Returns the time in microseconds. By default all processes of the machine share one clock.

    Raises:
        ConfigError: The size is too small, this process uses the path with other settings, or this is not Linux.

    Example:
        ``limiter = Limiter(rules, store=LmdbStore("/var/lib/app/ratelimit"))``
    """

    def __init__(
        self,
        path: str,
        size: int = 1 << 30,
        durable: bool = False,
        timeout_us: int = 50_000,
        clock: Clock | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise ConfigError(f"lmdb:// needs Linux, and this is {sys.platform}. Use redis:// or memory://")
        self.path = path
        self.name = f"lmdb://{path}"
        self._seconds = timeout_us / 1e6
        self._clock = clock
        self._budget = ThreadClock(self._seconds)
        self._environment = environment_at(path, check_size(size) + -size % mmap.PAGESIZE, durable)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._run_locked(lambda records: decide(records, hits, now, consume)) if hits else []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._run_locked(lambda records: correct(records, changes, now)) if changes else []

    def forget(self, keys: Iterable[str]) -> None:
        self._run_locked(partial(Records.delete, keys=list(keys)))

    def list_keys(self, prefix: str, place: str = "") -> KeyPage:
        return self._run_locked(partial(Records.list_keys, prefix=prefix, place=place))

    def read_record(self, name: str) -> bytes | None:
        return self._run_locked(partial(Records.read_document, key=record_key(name)))

    def write_record(self, name: str, data: bytes | None, before: bytes | None, lifetime: int | None = None) -> bool:
        return self._run_locked(_writing(name, data, before, lifetime))

    def start(self) -> None:
        self._run_locked(Records.ping, max(self._seconds, STARTING))

    def ping(self) -> None:
        self._run_locked(Records.ping)

    def facts(self) -> Iterator[Facts]:
        yield Facts("lmdb", self.path, {**self._environment.numbers(), **values_of(Path(self.path))})

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return await self._arun_locked(lambda records: decide(records, hits, now, consume)) if hits else []

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self._arun_locked(lambda records: correct(records, changes, now)) if changes else []

    async def aforget(self, keys: Iterable[str]) -> None:
        await self._arun_locked(partial(Records.delete, keys=list(keys)))

    async def alist_keys(self, prefix: str, place: str = "") -> KeyPage:
        return await self._arun_locked(partial(Records.list_keys, prefix=prefix, place=place))

    async def aread_record(self, name: str) -> bytes | None:
        return await self._arun_locked(partial(Records.read_document, key=record_key(name)))

    async def awrite_record(
        self, name: str, data: bytes | None, before: bytes | None, lifetime: int | None = None
    ) -> bool:
        return await self._arun_locked(_writing(name, data, before, lifetime))

    async def astart(self) -> None:
        await self._arun_locked(Records.ping, max(self._seconds, STARTING))

    async def aping(self) -> None:
        await self._arun_locked(Records.ping)

    def close(self) -> None:
        """Close the files. The last process leaves them synced. The next call opens them again."""
        self._environment.close()

    def _run_locked(self, work: _Work[_Result], seconds: float = 0.0) -> _Result:
        check_process()
        deadline = self._budget.time() + (seconds or self._seconds)
        self._environment.lock.acquire(self._budget, deadline)
        try:
            return self._run(work, deadline)
        finally:
            self._environment.lock.release()

    async def _arun_locked(self, work: _Work[_Result], seconds: float = 0.0) -> _Result:
        check_process()
        queue, seconds = self._environment.queue.get(), seconds or self._seconds
        deadline, clock = queue.clock.time() + seconds, self._budget
        return await queue.run(lambda: self._run(work, clock.time() + deadline - queue.clock.time()), seconds)

    def _run(self, work: _Work[_Result], deadline: float) -> _Result:
        return self._environment.run(work, self._clock, lambda: self._budget.time(waited=inf) > deadline)


def _writing(name: str, data: bytes | None, before: bytes | None, lifetime: int | None) -> _Work[bool]:
    key = record_key(name, data)
    return partial(Records.write_document, key=key, data=data, before=before, lifetime=lifetime)


def open_address(parsed: tuple[str, int, bool], timeout_us: int) -> LmdbStore:
    return LmdbStore(*parsed, timeout_us)
