"""Stores whose operations are calls with a time budget, made by threads or on event loops."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from ..decision import Correction
from ..errors import ConfigError, StoreError
from ..forksafe import check_process, run_in_child
from .base import Store, seconds_of
from .blocking import forms, run_blocking
from .budget import STARTING
from .per_loop import PerLoop
from .unmade import UnmadeCorrections
from .ways import EventLoop, Threads, Way, forget_transports
from .wire import ReplyError

_Kind = TypeVar("_Kind", Threads, EventLoop)


class CallStore(Store):
    """A store that begins a call for each operation. The call has the operations as coroutines.

    It also has ``left``, the corrections to make later, and ``now``, the time that the caller gave.
    """

    _title: ClassVar[str] = ""
    """The kind of the server, if the store has one."""

    def __init__(self, timeout_us: int) -> None:
        self._seconds = seconds_of(timeout_us)
        self._loops = PerLoop(lambda: self._open(EventLoop(self._seconds)))
        self._threads = self._open(Threads(self._seconds))
        self._unmade = UnmadeCorrections(self._correct_again)
        run_in_child(self, CallStore._start_over)

    apply, aapply = forms(Store.apply)
    correct, acorrect = forms(Store.correct)
    forget, aforget = forms(Store.forget)
    read_record, aread_record = forms(Store.read_record)
    write_record, awrite_record = forms(Store.write_record)
    ping, aping = forms(Store.ping)

    def start(self) -> None:
        self._run("ping", seconds=max(self._seconds, STARTING))

    async def astart(self) -> None:
        await self._arun("ping", seconds=max(self._seconds, STARTING))

    def close(self) -> None:
        self._unmade.close()
        self._threads.close()

    async def aclose(self) -> None:
        await self._unmade.aclose()  # a thread may need the connections of this loop
        if loop := self._loops.values.pop(asyncio.get_running_loop(), None):
            loop.close()
            await forget_transports()
        self.close()

    @abstractmethod
    def _begin(self, way: Way, seconds: float) -> Any:
        """Return a call with a time budget."""

    def _connect(self, way: Way) -> Any:
        """Return the connections of threads, or of an event loop; None for a store without any."""
        return None

    def _open(self, way: _Kind) -> _Kind:
        way.connections = self._connect(way)
        return way

    def _start_over(self) -> None:
        """In a forked child: drop what belongs to the parent."""
        self._threads.close()
        self._threads = self._open(Threads(self._seconds))

    def _run(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        """Return the result of an operation of a call."""
        check_process()
        call = self._begin(self._threads, seconds or self._seconds)
        try:
            return run_blocking(getattr(call, operation)(*arguments, **options))
        except Exception as error:
            raise self._as_error(error) from error
        finally:
            self._unmade.keep(call.left, call.now)

    async def _arun(self, operation: str, *arguments: Any, seconds: float = 0.0, **options: Any) -> Any:
        """Async form of ``_run``."""
        loop = self._loops.get()
        call = self._begin(loop, seconds or self._seconds)
        try:
            return await getattr(call, operation)(*arguments, **options)
        except Exception as error:
            raise self._as_error(error) from error
        finally:
            self._unmade.keep(call.left, call.now)

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
        """Make corrections that are left. Return those that are still left."""
        call = self._begin(self._threads, self._seconds)
        try:
            run_blocking(call.correct(changes, now))
        except Exception as error:
            if not call.left:
                raise self._as_error(error) from error
        left: Sequence[Correction] = call.left
        return left
