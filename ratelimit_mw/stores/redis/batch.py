"""Share calls to a server on an event loop: operations that arrive while calls are out leave with the next call.

No timer delays a call. An operation that finds no call out leaves at once, or with all that arrive in the same turn of
the loop if the last call had several. A call that fails fails only its own operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ..servers import Server
from ..wire import Flight, LoopConnection
from .call import Call, calls_of
from .errors import NotRunError, timed_out
from .router import Calls, Router, frame_of

_MOST: Final = 256  # operations of a call: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # this many waiting operations get a call of their own while others are out
_MOST_CALLS: Final = 4
_SAME_TIME: Final = 0.005  # seconds: deadlines this close count as one


class Batches:
    """The calls of one event loop: a queue for each server. It replaces the methods of a router that ask."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._loop = asyncio.get_running_loop()
        self._owners = router.map.owners
        self._queues: dict[Server | None, _Queue] = {}

    def ask(self, call: Call, deadline: float) -> Awaitable[Any]:
        """Return the result of a call, to be awaited. Raises ``StoreError``."""
        call.future, call.deadline, call.pending = self._loop.create_future(), deadline, None
        queue = self._queues.get(self._owners[call.slot]) or self._queue_of(call)
        queue.waiting.append(call)
        queue.start()
        return call.future

    def ask_each(self, calls: Sequence[Call], deadline: float) -> Awaitable[None]:
        """Give the calls of one request their results, or errors."""
        future, pending = self._loop.create_future(), [None] * len(calls)
        queues: dict[_Queue, None] = {}
        for each in calls:
            each.future, each.deadline, each.pending = future, deadline, pending
            queue = self._queue_of(each)
            queue.waiting.append(each)
            queues[queue] = None
        for queue in queues:
            queue.start()
        return future

    def close(self) -> None:
        self.router.close()

    def _queue_of(self, call: Call) -> _Queue:
        location = self._owners[call.slot]
        if (queue := self._queues.get(location)) is None:
            queue = self._queues[location] = _Queue(self.router, location)
        return queue


class _Queue:
    """The calls to one server. A call is out from its flush until all of its replies are there."""

    def __init__(self, router: Router, location: Server | None) -> None:
        self.router = router
        self.location = location
        self._loop = asyncio.get_running_loop()
        self._is_cluster = len(router.map.owners) > 1
        self.waiting: list[Call] = []
        self._connection: LoopConnection | None = None
        self._out = 0
        self._is_flushing = False
        self._last_was_lone = True
        self._tasks: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        """Send the operations that wait, unless a call is out that they can wait for."""
        if self._out:
            if len(self.waiting) >= _WORTHWHILE and self._out < _MOST_CALLS:
                self._flush_soon()
        elif self._last_was_lone and len(self.waiting) == 1:  # as a rule
            taken, self.waiting = self.waiting, []
            self.send(taken)
        elif self._last_was_lone:
            self._flush()
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush after all that is ready now, so that operations of one turn of the loop share a call."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self.waiting:
            if taken := self._take():
                self._last_was_lone = len(taken) == 1
                self.send(taken)
                return

    def _take(self) -> list[Call]:
        """Take a share of the waiting operations. They share a deadline.

        Those whose request was left, or whose deadline has passed, consume nothing.
        """
        waiting, now, count, taken = self.waiting, self.router.clock.now, 0, []
        until = waiting[0].deadline + _SAME_TIME
        # Without a cluster, half of them, so that server and process work at one time. Requests over several servers
        # come back together, and larger calls save a tenth of the processor time.
        share = len(waiting) if self._is_cluster else max(_WORTHWHILE, (len(waiting) + 1) // 2)
        for each in waiting[: min(_MOST, share)]:
            if each.deadline > until:
                break
            count += 1
            if each.deadline <= now:
                each.fail(timed_out(NotRunError))
                _deliver(each)
            elif not each.future.done():
                taken.append(each)
        del waiting[:count]
        return taken

    def send(self, taken: list[Call]) -> None:
        """Send to the open connection in this turn of the loop. Only a task can connect, and read the map, first."""
        self._out += 1
        connection = self._connection
        if connection is None or not connection.is_usable or self.router.map.is_stale:
            connection = self._connection = self.router.connection(self.location)
        if connection is None:
            self._run(self.router.ask_each(taken, taken[-1].deadline), taken)
            return
        calls = calls_of(taken) if len(taken) > 1 else taken
        try:
            frame = calls[0].frame if len(calls) == 1 else frame_of(calls)
            connection.post(frame, Flight(len(calls), taken[-1].deadline, partial(self._end, taken, calls)))
        except Exception as error:  # an argument that cannot be packed, or a connection that has just failed
            self._fail(taken, error)

    def _run(self, work: Coroutine[Any, Any, None], taken: list[Call]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._fail(taken, error)
            else:
                self.finish(taken)

        task = self._loop.create_task(run())
        self._tasks.add(task)  # an eager task may have ended already
        task.add_done_callback(self._tasks.discard)

    def _end(self, taken: list[Call], calls: Sequence[Call], replies: Sequence[Any], error: Exception | None) -> None:
        """Give calls their replies, in the turn of the loop that reads them. Send those again that a server redirects.

        Or give them the error of their server.
        """
        assert self.location is not None
        if error is not None:
            self.router.fail(taken, error, self.location)
            self._loop.call_soon(self.finish, taken)  # when the connection has taken note, too
            return
        left: Calls = {}
        self.router.receive(calls, replies, self.location, left)
        if left:
            self._run(self.router.follow(left, taken[-1].deadline), taken)
        else:
            self.finish(taken)

    def _fail(self, taken: list[Call], error: Exception) -> None:
        for each in taken:
            each.fail(error)
        self.finish(taken)

    def finish(self, taken: list[Call]) -> None:
        """Wake up the requests of calls that have their results, and send what has come meanwhile."""
        self._out -= 1
        for each in taken:
            _deliver(each)
        if self.waiting:
            self._flush_soon() if self._is_cluster else self._flush()


def _deliver(call: Call) -> None:
    """Wake up the request of an operation that has its result, unless it waits for the results of others."""
    result, pending, future = call.result, call.pending, call.future
    if pending is not None:
        pending.pop()
        if pending:
            return
        result = None
    if not future.done():
        (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
