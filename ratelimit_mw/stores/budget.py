"""Clocks of time budgets. They count only the time that a call waits for a server, not that of a busy worker.

A busy event loop reads a reply late, and so does a thread that waits for the GIL. Such a pause of any length counts
as a twentieth of the budget at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ..clock import machine

START_SECONDS: Final = 1.0
"""Seconds in which a worker may connect before its first request, even with a shorter time budget."""
_TURNS: Final = 20  # in a time budget
_MAX_BEAT: Final = 0.005  # seconds from beat to beat: until then, the clock holds calls that are done
_MIN_TIMEOUT: Final = 0.001  # Seconds. A timeout of 0 makes a socket non-blocking.
_Result = TypeVar("_Result")


class ThreadClock(threading.local):
    """A clock for blocking calls, in seconds. Each thread has its own time, which advances only while it waits."""

    def __init__(self, budget: float) -> None:
        self._turn = budget / _TURNS
        self.now = 0.0

    def count(self, began: float, most: float) -> float:
        """Count the seconds since ``began``, a time of the machine, but not more than ``most``. Return the time."""
        self.now += min(most, machine.monotonic() - began)
        return self.now

    def once(self, attempt: Callable[[float], _Result], deadline: float) -> _Result:
        """Return the result of ``attempt``, called once with the seconds until a time of this clock, at least 1 ms."""
        seconds, began = max(_MIN_TIMEOUT, deadline - self.now), machine.monotonic()
        try:
            return attempt(seconds)
        finally:
            self.count(began, seconds)

    def wait(self, attempt: Callable[[float], _Result], deadline: float) -> _Result:
        """Return the result of ``attempt``, called for a turn at a time as long as it raises ``TimeoutError``.

        Raises:
            TimeoutError: The clock has reached the deadline, and the last attempt has failed.
        """
        while True:
            seconds, now, began = self._turn, self.now, machine.monotonic()
            if now + seconds > deadline:
                seconds = max(_MIN_TIMEOUT, deadline - now)
            try:
                return attempt(seconds)
            except TimeoutError:
                if now + seconds >= deadline:
                    raise
            finally:
                took = machine.monotonic() - began
                self.now = now + (took if took < seconds else seconds)

    def result(self, future: Future[_Result], deadline: float) -> _Result:
        """Return the result of another thread, or ``TimeoutError`` at the deadline."""
        self.wait(future.exception, deadline)
        return future.result()


class LoopClock:
    """A clock of the running event loop: the beats while a call waits, in seconds. A busy loop beats late, but once."""

    def __init__(self, budget: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval = min(budget / _TURNS, _MAX_BEAT)
        self._checks: list[Callable[[float], bool]] = []
        self._handle: asyncio.TimerHandle | None = None
        self._beat_at = 0.0  # by the loop
        self.now = 0.0

    def watch(self, future: asyncio.Future[_Result], deadline: float) -> asyncio.Future[_Result]:
        """Return the future, which has the exception ``TimeoutError`` if it is not done at a time of this clock."""

        def is_waiting(passed: float) -> bool:
            if deadline < passed and not future.done():
                future.set_exception(TimeoutError())
                take_error(future)  # the request may have left
            return not future.done()

        self.check(is_waiting)
        return future

    def check(self, check: Callable[[float], bool]) -> None:
        """Call a function with the latest deadline that has passed, after each beat until it returns False."""
        self._checks.append(check)
        if self._handle is None:
            self._beat_at = self._loop.time()
            self._beat_again()

    async def result(self, future: asyncio.Future[_Result], deadline: float) -> _Result:
        """Return the result of a future that others wait for, too, or ``TimeoutError`` at the deadline."""
        ended = self._loop.create_future()
        future.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        try:
            await self.watch(ended, deadline)
        except TimeoutError:
            if not future.done():
                raise
        if future.cancelled():  # which would look as if the caller was
            raise TimeoutError
        return future.result()

    async def within(self, work: Coroutine[Any, Any, _Result], deadline: float) -> _Result:
        """Return the result of a coroutine, which a task of its own runs, or end it with ``TimeoutError``."""
        task = self._loop.create_task(work)
        task.add_done_callback(take_error)
        try:
            return await self.result(task, deadline)
        finally:
            task.cancel()

    def _beat_again(self) -> None:
        self._beat_at += self._interval
        self._handle = self._loop.call_at(self._beat_at, self._beat)

    def _beat(self) -> None:
        late = self._loop.time() - self._beat_at
        if late > self._interval:  # the beats that were missed do not count
            self._beat_at += late
        self.now += self._interval
        self._handle = None
        if self._checks:
            self._loop.call_soon(self._end)  # after the tasks whose reply this turn of the loop has read
            self._beat_again()

    def _end(self) -> None:
        passed, checks = self.now + self._interval / 2, self._checks  # sums of beats are not exact
        self._checks = []
        self._checks += [check for check in checks if check(passed)]


def take_error(future: asyncio.Future[Any]) -> None:
    """Note that an error is known: its call may have left, and asyncio would log it."""
    if not future.cancelled():
        future.exception()
