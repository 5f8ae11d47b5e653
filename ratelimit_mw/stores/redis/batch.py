"""Share calls to a server on an event loop: operations that arrive while calls are out join the next call.

No timer delays a call. An operation that finds no call out leaves at once. If the last call had one operation, it calls
within its own task; else it leaves with all that arrive in the same turn of the loop. A call that fails fails only its
own operations, and each operation has its own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import takewhile
from typing import Any, Final, cast

from ...errors import StoreError
from ..budget import LoopClock, LoopTimeout
from .client.cluster import Cluster, slot_of
from .client.errors import as_store_error, timed_out
from .client.server import Target
from .client.slot_map import Location
from .message import Caller, KeyName, Operation

_MOST: Final = 256  # operations of a call: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # this many waiting operations get a call of their own while others are out
_MOST_CALLS: Final = 4
_MOST_BATCHERS: Final = 1_000
_SAME_TIME: Final = 0.005  # seconds: deadlines this close count as one

Member = tuple[Operation, "asyncio.Future[Any]", float]
"""An operation, its result to come, and its deadline."""


class Batcher(Caller):
    """The calls to one server, on the event loop that builds it."""

    def __init__(self, target: Target, keys: KeyName, clock: LoopClock) -> None:
        super().__init__(target, keys, clock.time)
        self._loop = asyncio.get_running_loop()
        self.timeout_at = clock.timeout_at
        self.ask = self.join
        self._waiting: list[Member] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._has_lone_call = False
        self._timeout = LoopTimeout(clock)
        self._last_was_lone = True

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._has_lone_call

    def join(self, operation: Operation, deadline: float) -> Awaitable[Any]:
        out = len(self._calls) + self._has_lone_call
        if out == 0 and self._last_was_lone and not self._waiting:
            return self._call_alone(operation, deadline)
        return self.add(operation, deadline)

    def add(self, operation: Operation, deadline: float) -> asyncio.Future[Any]:
        """Add an operation to the next call, and return its result to come."""
        out = len(self._calls) + self._has_lone_call
        future = self._loop.create_future()
        self._waiting.append((operation, future, deadline))
        if out == 0 or (len(self._waiting) >= _WORTHWHILE and out < _MOST_CALLS):
            self._start()
        return future

    async def ask_each(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        return await results_of([self.join(each, deadline) for each in operations])

    async def _call_alone(self, operation: Operation, deadline: float) -> Any:
        """Call within the task of the request: the loop has no other task to start and wake."""
        self._has_lone_call = True
        try:
            with self._timeout.until(deadline):
                return await self.ask_alone(operation, deadline)
        except TimeoutError as error:
            raise timed_out() from error
        finally:
            self._has_lone_call = False
            if self._waiting and not self._calls:
                self._start()

    def _start(self) -> None:
        # The task starts after all that is ready now, so that operations of one turn of the loop share a call.
        self._calls.add(self._loop.create_task(self._call_until_empty()))

    async def _call_until_empty(self) -> None:
        try:
            while members := self._take():
                self._last_was_lone = len(members) == 1
                await self._call(members)
                await self._collect()
        finally:
            self._calls.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _collect(self) -> None:
        """Wait for more operations to share the next call."""

    def _take(self) -> list[Member]:
        """Take a share of the waiting operations. They share a deadline."""
        share = min(_MOST, self._share(len(self._waiting)))
        until = self._waiting[0][2] + _SAME_TIME if self._waiting else 0.0
        members = list(takewhile(lambda member: member[2] <= until, self._waiting[:share]))
        del self._waiting[: len(members)]
        return members

    def _share(self, waiting: int) -> int:
        """Return how many operations a call takes: half of them, so that server and process work at one time."""
        return max(_WORTHWHILE, (waiting + 1) // 2)

    async def _call(self, members: list[Member]) -> None:
        now = self.time()
        members = [member for member in members if not _is_over(member, now)]
        if not members:
            return
        try:
            deadline = max(deadline for _, _, deadline in members)
            with self.timeout_at(deadline):
                results = await self._results(members, deadline)
        except asyncio.CancelledError:  # the loop is closing
            for _, future, _ in members:
                future.cancel()
            raise
        except Exception as error:
            results = [as_store_error(error) for _ in members]
        for (_, future, _), result in zip(members, results, strict=True):
            if not future.done():
                (future.set_exception if isinstance(result, StoreError) else future.set_result)(result)

    async def _results(self, members: list[Member], deadline: float) -> list[Any]:
        return await self.ask_all([operation for operation, _, _ in members], deadline)


async def results_of(futures: Sequence[Awaitable[Any]]) -> list[Any]:
    """Await results or errors. If the caller leaves, operations that were not sent are not consumed."""
    results: list[Any] = []
    try:
        for future in futures:
            try:
                results.append(await future)
            except StoreError as error:
                results.append(error)
    finally:
        for future in futures[len(results) :]:
            if isinstance(future, asyncio.Future):
                future.cancel()
    return results


def _is_over(member: Member, now: float) -> bool:
    """Return whether the caller has left or its deadline has passed. Then nothing is consumed."""
    _, future, deadline = member
    if deadline <= now and not future.done():
        future.set_exception(timed_out())
    return future.done()


class NodeBatcher(Batcher):
    """The calls to one server of a cluster: one message for each slot, all sent together.

    A request may wait for several servers, so its next operations come a turn of the loop later. Larger calls save a
    tenth of the processor time.
    """

    async def _collect(self) -> None:
        await asyncio.sleep(0)

    def _share(self, waiting: int) -> int:
        return waiting

    async def _results(self, members: list[Member], deadline: float) -> list[Any]:
        return await self.ask_at_once([operation for operation, _, _ in members], deadline)


class NodeBatchers(Caller):
    """The calls to a cluster, on the event loop that builds it: the keys of one operation must be in one slot."""

    target: Cluster

    def __init__(self, target: Cluster, keys: KeyName, clock: LoopClock) -> None:
        super().__init__(target, keys, clock.time)
        self._clock = clock
        self.timeout_at = clock.timeout_at
        self.ask = self._ask_node
        self._batchers: dict[Location | None, NodeBatcher] = {}

    def _ask_node(self, operation: Operation, deadline: float) -> Awaitable[Any]:
        operation.slot = slot_of(self.keys(operation.key))
        return self._batcher(operation).join(operation, deadline)

    async def ask_each(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        if len(operations) == 1:
            return await results_of([self._batcher(operations[0]).join(operations[0], deadline)])
        return await results_of([self._batcher(each).add(each, deadline) for each in operations])

    def _batcher(self, operation: Operation) -> NodeBatcher:
        location, batchers = self.target.server_of(operation.slot or 0), self._batchers
        if location not in batchers:
            if len(batchers) >= _MOST_BATCHERS:
                for idle in [each for each, batcher in batchers.items() if batcher.is_idle]:
                    del batchers[idle]
            batchers[location] = NodeBatcher(self.target, self.keys, self._clock)
        return batchers[location]
