"""Share calls to a server on an event loop: operations that arrive while calls are out join the next call.

No timer delays a call. An operation that finds no call out leaves at once. If the last call had one operation, it calls
within its own task; else it leaves with all that arrive in the same turn of the loop. A call that fails fails only its
own operations, and each operation has its own deadline.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from ...errors import StoreError
from ..budget import LoopClock
from .call import Call, calls_of
from .client.cluster import Cluster
from .client.errors import NotRunError, timed_out
from .client.server import Caller, Target
from .client.slot_map import Location

_MOST: Final = 256  # operations of a call: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # this many waiting operations get a call of their own while others are out
_MOST_CALLS: Final = 4
_SAME_TIME: Final = 0.005  # seconds: deadlines this close count as one


class LoopCaller(Caller):
    """Finds the queue of each operation, on the event loop that builds it."""

    def __init__(self, target: Target, clock: LoopClock) -> None:
        super().__init__(target, clock)
        self._loop = asyncio.get_running_loop()

    def ask_each(self, operations: Sequence[Call], deadline: float) -> Awaitable[None]:
        if len(operations) == 1:
            return self._ask_one(operations[0], deadline)
        future, pending, batcher_of = self._loop.create_future(), [None] * len(operations), self.batcher_of
        for each in operations:
            each.future, each.deadline, each.pending = future, deadline, pending
            batcher_of(each.slot).add(each)
        return future

    async def _ask_one(self, operation: Call, deadline: float) -> None:
        """Ask as ``ask`` does: a lone operation needs no task."""
        try:
            await self.ask(operation, deadline)
        except StoreError as error:
            operation.fail(error)

    @abstractmethod
    def batcher_of(self, slot: int) -> Batcher:
        """Return the queue of the server that has a slot."""


class Batcher(LoopCaller):
    """The calls to one server."""

    def __init__(self, target: Target, clock: LoopClock) -> None:
        super().__init__(target, clock)
        self._waiting: list[Call] = []
        self._calls: set[object] = set()
        """Their tasks. A lone operation, which has none, is there itself."""
        self._last_was_lone = True

    def ask(self, operation: Call, deadline: float) -> Awaitable[Any]:
        if self._last_was_lone and not self._waiting and not self._calls:
            return self._call_alone(operation, deadline)
        operation.future, operation.deadline, operation.pending = self._loop.create_future(), deadline, None
        self.add(operation)
        return operation.future

    def batcher_of(self, slot: int) -> Batcher:
        return self

    def add(self, operation: Call) -> None:
        """Add an operation to the next call."""
        self._waiting.append(operation)
        if not self._calls or (len(self._waiting) >= _WORTHWHILE and len(self._calls) < _MOST_CALLS):
            self._start()

    async def _call_alone(self, operation: Call, deadline: float) -> Any:
        """Call within the task of the request: the loop has no other task to start and wake."""
        self._calls.add(operation)
        try:
            return await self.ask_alone(operation, deadline)
        finally:
            self._calls.discard(operation)
            if self._waiting and not self._calls:
                self._start()

    def _start(self) -> None:
        # The task starts after all that is ready now, so that operations of one turn of the loop share a call.
        task = self._loop.create_task(self._call_until_empty())
        if not task.done():  # an eager task starts at once, and may have ended
            self._calls.add(task)

    async def _call_until_empty(self) -> None:
        try:
            while self._waiting:
                if operations := self._take():
                    self._last_was_lone = len(operations) == 1
                    await self._call(operations)
                    await self._collect()
        finally:
            self._calls.discard(asyncio.current_task())

    async def _collect(self) -> None:
        """Wait for more operations to share the next call."""

    def _take(self) -> list[Call]:
        """Take a share of the waiting operations. They share a deadline.

        Those whose request was left, or whose deadline has passed, consume nothing.
        """
        waiting, now, count, taken = self._waiting, self.clock.now, 0, []
        until = waiting[0].deadline + _SAME_TIME
        for each in waiting[: min(_MOST, self._share(len(waiting)))]:
            if each.deadline > until:
                break
            count += 1
            if each.deadline <= now:
                each.fail(timed_out(NotRunError))
                deliver(each)
            elif not each.future.done():
                taken.append(each)
        del waiting[:count]
        return taken

    def _share(self, waiting: int) -> int:
        """Return how many operations a call takes: half of them, so that server and process work at one time."""
        return max(_WORTHWHILE, (waiting + 1) // 2)

    async def _call(self, operations: list[Call]) -> None:
        try:
            deadline = max([each.deadline for each in operations])
            await self.target.ask_each(calls_of(operations), deadline)
        except asyncio.CancelledError:  # the loop is closing
            for each in operations:
                each.future.cancel()
            raise
        except Exception as error:
            for each in operations:
                each.fail(error)
        for each in operations:
            deliver(each)


def deliver(operation: Call) -> None:
    """Wake up the request of an operation that has its result, unless it waits for the results of others."""
    result, pending, future = operation.result, operation.pending, operation.future
    if pending is not None:
        pending.pop()
        if pending:
            return
        result = None
    if not future.done():
        (future.set_exception if isinstance(result, StoreError) else future.set_result)(result)


class NodeBatcher(Batcher):
    """The calls to one server of a cluster: one message for each slot, all sent together.

    A request may wait for several servers, so its next operations come a turn of the loop later. Larger calls save a
    tenth of the processor time.
    """

    async def _collect(self) -> None:
        await asyncio.sleep(0)

    def _share(self, waiting: int) -> int:
        return waiting


class NodeBatchers(LoopCaller):
    """The calls to a cluster: the keys of one operation must be in one slot."""

    def __init__(self, target: Cluster, clock: LoopClock) -> None:
        super().__init__(target, clock)
        self._loop_clock = clock
        self._owners = target.owners
        self._batchers: dict[Location | None, NodeBatcher] = {}

    def ask(self, operation: Call, deadline: float) -> Awaitable[Any]:
        return self.batcher_of(operation.slot).ask(operation, deadline)

    def batcher_of(self, slot: int) -> Batcher:
        location = self._owners[slot]
        if (batcher := self._batchers.get(location)) is None:
            batcher = self._batchers[location] = NodeBatcher(self.target, self._loop_clock)
        return batcher
