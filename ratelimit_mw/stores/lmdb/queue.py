"""The calls of one event loop that wait for the lock: the first one asks for it, and who gets it has all of them done.

Others hold the lock for some ten microseconds, and a loop can ask for it once a millisecond: were each call to get it
for itself, most would wait in vain when several processes are busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from .lock import FileLock

__all__ = ["Line"]

_AT_ONCE: Final = 100
# An event loop's shortest sleep is a millisecond.
_YIELDS: Final = 8
_PAUSE: Final = 0.001
_Answer = TypeVar("_Answer")


class _Call(Generic[_Answer]):
    """Work that waits, then what came of it."""

    __slots__ = ("answer", "done", "error", "work")

    answer: _Answer

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self.work = work
        self.done = False
        self.error: Exception | None = None

    def do(self) -> None:
        try:
            self.answer = self.work()
        except Exception as error:
            self.error = error
        self.done = True

    def result(self) -> _Answer:
        if self.error is not None:
            raise self.error
        return self.answer


class Line:
    """Who waits. ``TimeoutError`` for whom it was too long."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._turn = asyncio.Lock()
        self._waiting: dict[_Call[Any], None] = {}

    async def done(self, work: Callable[[], _Answer], seconds: float) -> _Answer:
        """What the work comes to, done by a holder of the lock."""
        call = _Call(work)
        self._waiting[call] = None
        try:
            if not self._served(call):
                async with asyncio.timeout(seconds), self._turn:
                    await self._ask_for(call)
        except TimeoutError:
            if not call.done:
                raise
        finally:
            del self._waiting[call]
        return call.result()

    async def _ask_for(self, call: _Call[Any]) -> None:
        yields = _YIELDS
        while not call.done and not self._served(call):
            await asyncio.sleep(0 if yields > 0 else _PAUSE)
            yields -= 1

    def _served(self, call: _Call[Any]) -> bool:
        """Whether the lock was free; then a call is done, and those that wait longest."""
        if not self._lock.try_acquire():
            return False
        try:
            for each in (call, *islice(self._waiting, _AT_ONCE)):
                if not each.done:
                    each.do()
        finally:
            self._lock.release()
        return True
