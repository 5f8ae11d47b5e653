"""``LmdbStore``: each call takes the lock within its time budget, works in one transaction and releases the lock."""

from __future__ import annotations

import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import lmdb

from ...clock import Clock
from ...decision import Decision, Hit
from ...errors import ConfigError, StoreError
from ...forksafe import check_process, create_lock
from ...receipt import Correction
from ..base import Store
from .address import LmdbAddress, check_size
from .decide import correct, decide, decide_one
from .environment import Environment, environment_at, release
from .records import Records

# Damaged records cause the errors that are not of the system. They expire like other records.
_FAULTS: Final = (OSError, ValueError, IndexError, ArithmeticError, struct.error)
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
        self._settings = (path, check_size(size) + -size % mmap.PAGESIZE, durable)
        self._seconds = timeout_us / 1e6
        self._clock = clock
        self._opening = create_lock(self, "_opening", threading.Lock)
        self._environment: Environment | None = environment_at(*self._settings)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._locked(_deciding(hits, now, consume)) if hits else []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._locked(lambda records: correct(records, changes, now)) if changes else []

    def forget(self, keys: Iterable[str]) -> None:
        if names := list(keys):
            self._locked(lambda records: records.delete(names))

    def ping(self) -> None:
        self._locked(Records.ping)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return await self._alocked(_deciding(hits, now, consume)) if hits else []

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self._alocked(lambda records: correct(records, changes, now)) if changes else []

    async def aforget(self, keys: Iterable[str]) -> None:
        if names := list(keys):
            await self._alocked(lambda records: records.delete(names))

    async def aping(self) -> None:
        await self._alocked(Records.ping)

    def close(self) -> None:
        """Close the files. The last process leaves them synced. The next call opens them again."""
        environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)

    def _locked(self, work: _Work[_Result]) -> _Result:
        environment = self._open()
        deadline = time.monotonic() + self._seconds
        try:
            environment.lock.acquire(deadline)
        except OSError as error:
            raise _failure(environment, error) from error
        try:
            return self._run(environment, work, deadline)
        finally:
            environment.lock.release()

    async def _alocked(self, work: _Work[_Result]) -> _Result:
        environment = self._open()
        deadline = time.monotonic() + self._seconds
        try:
            return await environment.queue.get().run(lambda: self._run(environment, work, deadline), self._seconds)
        except TimeoutError:
            raise environment.lock.timed_out() from None
        except OSError as error:
            raise _failure(environment, error) from error

    def _run(self, environment: Environment, work: _Work[_Result], deadline: float) -> _Result:
        """Do the work as the holder of the lock."""
        clock = self._clock or environment.now_us
        try:
            try:
                return environment.transactions().run(work, clock(), deadline)
            except lmdb.MapResizedError:
                # Another process uses a larger size. No transaction has begun. Opening again maps the whole file.
                environment.discard()
                return environment.transactions().run(work, clock(), deadline)
        except lmdb.Error as error:
            environment.discard()
            raise _failure(environment, error) from error
        except _FAULTS as error:
            raise _failure(environment, error) from error

    def _open(self) -> Environment:
        check_process()
        return self._environment or self._reopen()

    def _reopen(self) -> Environment:
        with self._opening:
            if self._environment is None:
                self._environment = environment_at(*self._settings)
            return self._environment


def _deciding(hits: Sequence[Hit], now: int | None, consume: bool) -> _Work[list[Decision]]:
    if len(hits) == 1:
        return lambda records: decide_one(records, hits[0], now, consume)
    return lambda records: decide(records, hits, now, consume)


def _failure(environment: Environment, error: Exception) -> StoreError:
    return StoreError(f"lmdb://{environment.path} failed: {type(error).__name__}: {error}")


def open_address(address: LmdbAddress, timeout_us: int) -> LmdbStore:
    return LmdbStore(address.path, address.size, address.durable, timeout_us)
