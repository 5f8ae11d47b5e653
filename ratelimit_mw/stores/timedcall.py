"""``TimedCall``: a call on bytes with a time budget. Calls of one process that wait for a key are decided together."""

from __future__ import annotations

from collections.abc import Sequence, Set
from concurrent.futures import Future
from functools import partial
from typing import Final

from ..decision import Correction, decide_all
from ..errors import StateError
from .bytecall import ByteCall
from .drivers import Driver

_ATTEMPTS: Final = 0.7
"""The part of the time budget in which an attempt must end. The rest undoes the last one."""


class TimedCall(ByteCall):
    """A call with a time budget. It takes its turn at its keys, with all calls of its process that wait for them."""

    joins = True
    keys: Set[str] = frozenset()
    turn: Future[Sequence[TimedCall]]
    """The calls to decide in its turn, none if another call has decided this one. Done while no other call runs it."""

    def __init__(self, driver: Driver, seconds: float) -> None:
        self.driver = driver
        self.deadline = driver.clock.now + seconds
        self.retry_until = self.deadline - (1 - _ATTEMPTS) * seconds

    def time(self) -> float:
        return self.driver.clock.now

    async def pause(self, seconds: float) -> None:
        await self.driver.pause(seconds)

    @property
    def unmade(self) -> Sequence[Correction]:
        """The corrections to make later. Another call that still runs this one makes them now."""
        return self.left if not hasattr(self, "turn") or self.turn.done() else ()

    async def run(self) -> None:
        """Run this call in its turn, if no other call runs it with its own."""
        turns, self.keys = self.driver.turns, set(self.used_keys())
        if not turns.take(self):
            await self._run_later()
            return
        try:
            await self.run_all([self])
        finally:
            turns.end([self])

    async def _run_later(self) -> None:
        """Wait for the turn.

        Without a turn in time, although the store has replied to others, hits are rejected, and corrections race.
        """
        replies, problem = self.driver.replies, None
        try:
            calls = await self.driver.result(self.turn, self.retry_until)
        except BaseException as error:
            if self.driver.turns.leave(self):
                if not isinstance(error, TimeoutError) or self.driver.replies == replies:
                    raise
                if self.left:
                    await self.run_all([self])
                else:
                    self.decisions = decide_all(self.hits, [None] * len(self.hits), self.now or 0)[0]
                    self.give_up()
                return
            problem, self.is_late = error, True  # its turn has come, or another call runs it
        try:
            if problem is not None:
                calls = await self.driver.result(self.turn, self.deadline)
            if calls:
                await self.driver.complete(self._lead(calls), partial(self._end_turn, calls))
        finally:
            if problem is not None and not isinstance(problem, TimeoutError):
                raise problem  # the caller was cancelled

    async def _lead(self, calls: Sequence[TimedCall]) -> None:
        """Run these calls, of which this one has most time left. A damaged state fails its own."""
        self.turn, left = Future(), calls
        while True:
            try:
                await self.run_all(left)
                break
            except StateError as error:  # nothing was written
                for each in [each for each in left if not each.keys.isdisjoint(error.keys)] or left:
                    each.end(error)
                left = [each for each in left if not each.turn.done()]
            except Exception as error:
                for each in left:
                    each.end(error)
                raise
        for each in left:
            each.end()
        self.turn.result()

    def _end_turn(self, calls: Sequence[TimedCall]) -> None:
        """End the turn of calls. Those without a result fail: the work was cancelled, maybe before it began."""
        for each in calls:
            each.end(TimeoutError())
        self.driver.turns.end(calls)

    def end(self, error: Exception | None = None) -> None:
        """Let the caller continue, before the other calls of its turn end. No call runs this one any longer."""
        if not hasattr(self, "turn") or self.turn.done():
            return
        if error is None:
            self.turn.set_result(())
        else:
            self.turn.set_exception(error)
