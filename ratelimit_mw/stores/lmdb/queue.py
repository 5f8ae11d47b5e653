"""The calls of one event loop that wait for the lock. The call that gets the lock runs all others too.

Other processes hold the lock for some ten microseconds, and a loop can try it once a millisecond. If each call took
the lock for itself, most calls would time out when several processes are busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

from .lock import FileLock

__all__ = ["LockQueue"]

_MAX_CALLS: Final = 100
_YIELDS: Final = 8
_PAUSE: Final = 0.001  # The shortest sleep of an event loop.
_Result = TypeVar("_Result")


class LockQueue:
    """Runs work under the lock without blocking its event loop."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._turn = asyncio.Lock()
        self._calls: dict[asyncio.Future[Any], Callable[[], Any]] = {}

    async def run(self, work: Callable[[], _Result], seconds: float) -> _Result:
        """Run the work under the lock and return its result; ``TimeoutError`` if the lock is not free in time."""
        call: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._calls[call] = work
        try:
            if not self._run_all(call):
                async with asyncio.timeout(seconds), self._turn:
                    await self._wait(call)
        except TimeoutError:
            if not call.done():
                raise
        finally:
            del self._calls[call]
            call.cancel()  # Without effect on a result. Without it, asyncio logs errors of calls that were cancelled.
        return call.result()

    async def _wait(self, call: asyncio.Future[Any]) -> None:
        yields = _YIELDS
        while not call.done() and not self._run_all(call):
            await asyncio.sleep(0 if yields > 0 else _PAUSE)
            yields -= 1

    def _run_all(self, call: asyncio.Future[Any]) -> bool:
        """If the lock is free, run this call and the calls that wait longest."""
        if not self._lock.try_acquire():
            return False
        try:
            for each in (call, *islice(self._calls, _MAX_CALLS)):
                if not each.done():
                    _complete(each, self._calls[each])
        finally:
            self._lock.release()
        return True


def _complete(call: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        call.set_result(work())
    except Exception as error:
        call.set_exception(error)
