"""``LmdbStore``: a call takes the lock within its time budget, does its work in one transaction, and lets go.

What is decided and kept is the ledger's; what a transaction is opened on, the environment's.
"""

from __future__ import annotations

import mmap
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import lmdb

from ...clock import Clock
from ...decision import Correction, Decision, Hit
from ...errors import ConfigError, StoreError
from ..base import Store
from .address import ParsedAddress, checked_size
from .environment import Environment
from .registry import environment_at, let_go
from .transaction import Ledger

__all__ = ["LmdbStore", "open_address"]

_FAULTS: Final = (OSError, ValueError, IndexError, ArithmeticError, struct.error)
_Answer = TypeVar("_Answer")


class LmdbStore(Store):
    """States in the LMDB environment in the directory ``path``, made when it is first asked for something.

    ``size`` is the most bytes that its file takes. With ``durable`` each change is on the disk before it is answered;
    without, a stop of the machine, not of a process, may lose the counts. A call that does not get its turn within
    ``timeout_us`` raises ``StoreError``. By default all processes of the machine count by one clock.
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
            raise ConfigError("lmdb:// needs Linux, where a worker that dies cannot leave its lock behind")
        checked_size(size)
        self.path = path
        self._settings = (path, size + -size % mmap.PAGESIZE, durable)
        self._budget = timeout_us
        self._clock = clock
        self._opening = threading.Lock()
        self._home: Environment | None = environment_at(*self._settings)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._locked(lambda ledger, at: ledger.apply(hits, at, now, consume)) if hits else []

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._locked(lambda ledger, at: ledger.correct(changes, at, now)) if changes else []

    def forget(self, keys: Iterable[str]) -> None:
        if named := list(keys):
            self._locked(lambda ledger, at: ledger.forget(named, at))

    def ping(self) -> None:
        self._locked(lambda ledger, at: ledger.ping(at))

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return await self._alocked(lambda ledger, at: ledger.apply(hits, at, now, consume)) if hits else []

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self._alocked(lambda ledger, at: ledger.correct(changes, at, now)) if changes else []

    async def aforget(self, keys: Iterable[str]) -> None:
        if named := list(keys):
            await self._alocked(lambda ledger, at: ledger.forget(named, at))

    async def aping(self) -> None:
        await self._alocked(lambda ledger, at: ledger.ping(at))

    def close(self) -> None:
        """Let go of the files; the last process to do so leaves them synced. The next call opens them again."""
        home, self._home = self._home, None
        if home is not None:
            let_go(home)

    def _locked(self, work: Callable[[Ledger, int], _Answer]) -> _Answer:
        home = self._home or self._back()
        try:
            home.lock.acquire(self._budget)
        except OSError as error:
            raise _failed(home, error) from error
        try:
            return self._done(home, work)
        finally:
            home.lock.release()

    async def _alocked(self, work: Callable[[Ledger, int], _Answer]) -> _Answer:
        home = self._home or self._back()
        try:
            return await home.line().done(lambda: self._done(home, work), self._budget / 1e6)
        except TimeoutError:
            raise home.lock.too_late() from None
        except OSError as error:
            raise _failed(home, error) from error

    def _done(self, home: Environment, work: Callable[[Ledger, int], _Answer]) -> _Answer:
        """Do the work, as the holder of the lock."""
        try:
            try:
                return work(home.ledger(), (self._clock or home.now_us)())
            except lmdb.MapResizedError:
                # A process with a larger size has used it. Nothing was begun, and opening again shows the whole file.
                home.discard()
                return work(home.ledger(), (self._clock or home.now_us)())
        except lmdb.Error as error:
            home.discard()
            raise _failed(home, error) from error
        except _FAULTS as error:
            raise _failed(home, error) from error

    def _back(self) -> Environment:
        with self._opening:
            if self._home is None:
                self._home = environment_at(*self._settings)
            return self._home


def _failed(home: Environment, error: Exception) -> StoreError:
    return StoreError(f"the store in {home.path} failed: {type(error).__name__}: {error}")


def open_address(parsed: ParsedAddress, timeout_us: int) -> LmdbStore:
    """The store at an address that was read."""
    return LmdbStore(parsed.path, parsed.size, parsed.durable, timeout_us)
