"""Stores whose operations are calls with a time budget, made by threads or on event loops."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, ClassVar, Final, TypeVar

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import SECOND, monotonic
from ..decision import Correction
from ..errors import ConfigError, StoreError
from ..runtime.blocking import PerLoop, forms, run_blocking
from ..runtime.forksafe import check_process, run_in_child
from ..runtime.heartbeat import Heartbeat
from .base import Store
from .budget import START_SECONDS
from .drivers import Driver, LoopDriver, ThreadDriver, forget_transports
from .wire import ReplyError

_Kind = TypeVar("_Kind", ThreadDriver, LoopDriver)

_PAUSE: Final = 0.2  # seconds between two tries
_CLOSING: Final = 1.0  # seconds in which the last tries begin
_MAX_UNMADE: Final = 10_000  # calls
_log = logging.getLogger("ratelimit_mw")


class CallStore(Store):
    """A store that begins a call for each operation. The call has the operations as coroutines.

    It also has ``unmade``, the corrections to make later, and ``now``, the time that the caller gave.
    """

    _title: ClassVar[str] = ""
    """The kind of the server, if the store has one."""

    def __init__(self, timeout_us: int = 50_000) -> None:
        self._seconds = timeout_us / SECOND
        self._loop_drivers = PerLoop(lambda: self._open(LoopDriver(self._seconds)))
        self._thread_driver = self._open(ThreadDriver(self._seconds))
        self._unmade = UnmadeCorrections(self._correct_again)
        run_in_child(self, CallStore._start_over)

    apply, aapply = forms(Store.apply)
    correct, acorrect = forms(Store.correct)
    forget, aforget = forms(Store.forget)
    read_record, aread_record = forms(Store.read_record)
    write_record, awrite_record = forms(Store.write_record)
    ping, aping = forms(Store.ping)

    def start(self) -> None:
        self._run("ping", seconds=max(self._seconds, START_SECONDS))

    async def astart(self) -> None:
        await self._arun("ping", seconds=max(self._seconds, START_SECONDS))

    def close(self) -> None:
        self._unmade.close()
        self._thread_driver.close()

    async def aclose(self) -> None:
        if len(self._unmade):
            await asyncio.to_thread(self._unmade.close)  # a thread may need the connections of this loop
        if driver := self._loop_drivers.values.pop(asyncio.get_running_loop(), None):
            driver.close()
            await forget_transports()
        self.close()

    @abstractmethod
    def _begin(self, driver: Driver, seconds: float) -> Any:
        """Return a call with a time budget."""

    def _connect(self, driver: Driver) -> Any:
        """Return the connections of threads, or of an event loop; None for a store without any."""
        return None

    def _open(self, driver: _Kind) -> _Kind:
        driver.connections = self._connect(driver)
        return driver

    def _start_over(self) -> None:
        """In a forked child: drop what belongs to the parent."""
        self._unmade = UnmadeCorrections(self._correct_again)
        self._thread_driver.close()
        self._thread_driver = self._open(ThreadDriver(self._seconds))

    def _run(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        """Return the result of an operation of a call."""
        check_process()
        call = self._begin(self._thread_driver, seconds or self._seconds)
        try:
            return run_blocking(getattr(call, operation)(*arguments, **options))
        except Exception as error:
            raise self._as_error(error) from error
        finally:
            self._unmade.keep(call.unmade, call.now)

    async def _arun(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        """Async form of ``_run``."""
        call = self._begin(self._loop_drivers.get(), seconds or self._seconds)
        try:
            return await getattr(call, operation)(*arguments, **options)
        except Exception as error:
            raise self._as_error(error) from error
        finally:
            self._unmade.keep(call.unmade, call.now)

    def _as_error(self, error: Exception) -> Exception:
        """Return the error to raise because of an error."""
        if isinstance(error, TimeoutError):
            return StoreError(f"{self._title or self} did not reply within the time budget")
        if not self._title or isinstance(error, (StoreError, ConfigError)):
            return error
        verb = " replied" if isinstance(error, ReplyError) else ""
        kind = "" if isinstance(error, (OSError, ReplyError)) else f"{type(error).__name__}: "
        return StoreError(f"{self._title}{verb}: {kind}{error}")

    def _correct_again(self, changes: Sequence[Correction], now: int | None) -> Sequence[Correction]:
        """Make corrections that are left. Return those that are still left, not those that the store may have made."""
        call = self._begin(self._thread_driver, self._seconds)
        with suppress(Exception):
            run_blocking(call.correct(changes, now))
        unmade: Sequence[Correction] = call.unmade
        return unmade


class UnmadeCorrections:
    """The corrections that a store has not made, because it was busy with other clients. A thread tries them again.

    After 60 s the cost stays consumed; a slot has expired by then. ``correct`` returns those that are still left.
    """

    def __init__(self, correct: Callable[[Sequence[Correction], int | None], Sequence[Correction]]) -> None:
        self._correct = correct
        self._waiting: deque[tuple[Sequence[Correction], int | None, float]] = deque()
        self._given_up = 0
        """The corrections that the next beat logs as given up."""
        self._heartbeat = Heartbeat(
            UnmadeCorrections._try_again, _PAUSE, "make corrections", "their cost stays consumed"
        )

    def keep(self, changes: Sequence[Correction], now: int | None) -> None:
        if len(self._waiting) >= _MAX_UNMADE:
            self._given_up += len(changes)
        elif changes:
            self._waiting.append((changes, now, monotonic() + SLOT_LIFE / SECOND))
            self._heartbeat.hold(self)

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Try each once more, and stop the thread."""
        self._try_again(_CLOSING)
        self._heartbeat.close()
        self._given_up += sum(len(changes) for changes, _, _ in self._waiting)
        self._log_given_up()

    def _try_again(self, seconds: float = inf) -> None:
        ends_at = monotonic() + seconds
        for _ in range(len(self._waiting)):
            if monotonic() > ends_at:
                break
            with suppress(IndexError):  # another thread has taken it
                self._try(*self._waiting.popleft())
        self._log_given_up()
        self._heartbeat.release(self)
        if self._waiting:
            self._heartbeat.hold(self)

    def _try(self, changes: Sequence[Correction], now: int | None, until: float) -> None:
        changes = self._correct(changes, now)
        if changes and monotonic() < until:
            self._waiting.append((changes, now, until))
        else:
            self._given_up += len(changes)

    def _log_given_up(self) -> None:
        count, self._given_up = self._given_up, 0
        if count:
            message = "%d corrections were not made, because the store was busy or unreachable; their cost stays"
            _log.warning(message, count)
