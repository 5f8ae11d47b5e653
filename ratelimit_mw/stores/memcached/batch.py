"""Batches on an event loop: while a call is under way, the calls for its keys wait, and are then attempted together.

A call that has lost a race goes into the next batch. Each call keeps its own time budget and its own result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from ...decision import Decision
from ..budget import LoopClock
from .races import RacingCall, pause
from .steps import attempt

_MAX_CALLS: Final = 256  # calls per batch: they keep the event loop busy for a few milliseconds


class OptimisticBatch:
    """The calls whose keys are on the same servers, so that a failing server fails no other calls."""

    def __init__(self, carry_out: Callable[..., Awaitable[bool]], clock: LoopClock) -> None:
        self._carry_out = carry_out
        self._clock = clock
        self._busy: set[bytes] = set()  # the keys of the calls under way
        self._waiting: list[RacingCall] = []
        self._awaited: set[bytes] = set()  # the keys of the waiting calls
        self._tasks: set[asyncio.Task[None]] = set()

    async def decide(self, call: RacingCall) -> list[Decision]:
        """Return the result of a call, at the end of its time budget at the latest."""
        if self._busy.isdisjoint(call.tokens) and self._awaited.isdisjoint(call.tokens):
            await self._attempt([call])
        else:
            self._wait(call)
        if not _finish(call):
            call.finished = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError), self._clock.timeout_at(call.due):
                await call.finished
        return call.result()

    def _wait(self, call: RacingCall) -> None:
        self._waiting.append(call)
        self._awaited.update(call.tokens)

    def _start(self, lost: bool) -> None:
        # The task starts after the callbacks that are ready now, so calls that arrive together share a batch.
        task = asyncio.get_running_loop().create_task(self._run(lost))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def _run(self, lost: bool) -> None:
        """Make one attempt for the calls whose keys are free, and were not asked for by an earlier waiting call."""
        if lost:  # the calls race with other processes
            await asyncio.sleep(pause())
        blocked = set(self._busy)
        batch: list[RacingCall] = []
        waiting, self._waiting, self._awaited = self._waiting, [], set()
        for call in waiting:
            if _finish(call):
                continue
            if len(batch) < _MAX_CALLS and blocked.isdisjoint(call.tokens):
                batch.append(call)
            else:
                blocked.update(call.tokens)
                self._wait(call)
        if batch:
            await self._attempt(batch)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # the event loop is closing; the waiting calls run into their timeouts
            self._waiting, self._awaited = [], set()

    async def _attempt(self, calls: Sequence[RacingCall]) -> None:
        """Make one attempt. The losing calls wait in front of the calls that arrived meanwhile."""
        tokens = {token for call in calls for token in call.tokens}
        self._busy |= tokens
        began = self._clock.time()
        losers: list[RacingCall] = []
        try:
            await self._carry_out(attempt, calls, due=max([call.due for call in calls]))
            losers = [call for call in calls if not call.is_done]
            for call in losers:
                call.lose(self._clock.time() - began)
                self._awaited.update(call.tokens)
            self._waiting[:0] = losers
        except Exception as error:
            for call in calls:
                call.fail(error)
        finally:
            for call in calls:
                _finish(call)
            self._busy -= tokens
            if not self._awaited.isdisjoint(tokens):
                self._start(lost=any(call.lost > 1 for call in losers))


def _finish(call: RacingCall) -> bool:
    """End the wait for a call that is done, or has lost a race and has no time for another attempt."""
    is_over = call.is_done or (call.lost > 0 and not call.has_time)
    if call.finished is None:
        return is_over
    if is_over and not call.finished.done():
        call.finished.set_result(None)
    return call.finished.done()
