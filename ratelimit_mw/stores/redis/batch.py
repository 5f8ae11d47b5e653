"""Send the calls of an event loop to one server. Each has the reply, or the error of the server, as its result then.

Calls that arrive while others are out leave with the next ones. No timer delays a call. One that finds none out leaves
at once; if the last ones left together, with all that arrive in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final

from ..budget import LoopClock
from ..wire import Flight, resolve
from .call import RedisCall, commands_of, frame_of, receive
from .errors import NotRunError, timed_out

_MAX_FLIGHT: Final = 256  # requests in a flight: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # this many waiting requests get a flight of their own while others are out
_MAX_FLIGHTS: Final = 4
_SAME_TIME: Final = 0.005  # seconds: deadlines this close count as one

Commands = Sequence[Sequence[RedisCall]]
_Request = tuple[Sequence[RedisCall], float, asyncio.Future[None]]
"""The calls of a request to the server, their deadline, and a future that is done when they have their results."""


class Batcher:
    """Sends calls over a channel. A flight is out until all of its replies are there."""

    def __init__(self, channel: Any, clock: LoopClock, is_cluster: bool) -> None:
        self.channel = channel
        self._clock = clock
        self._is_cluster = is_cluster
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Request] = []
        self._out = 0
        self._is_flushing = False
        self._is_checked = False
        self._last_was_lone = True
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, calls: Sequence[RedisCall], deadline: float) -> Awaitable[None]:
        """Send calls now, or with those of other requests, and let the caller wait for their results."""
        future: asyncio.Future[None] = self._loop.create_future()
        request = calls, deadline, future
        if not self._out and self._last_was_lone and not self._waiting:  # as a rule
            self._post([request])
            return future
        self._waiting.append(request)
        if not self._is_checked:
            self._is_checked = True
            self._clock.check(self._give_up)
        if not self._out or (len(self._waiting) >= _WORTHWHILE and self._out < _MAX_FLIGHTS):
            self._flush_soon()
        return future

    ask = send  # without a call more for each request

    def _give_up(self, passed: float) -> bool:
        """End requests whose deadline has passed while a flight with a later one is out. Return whether any wait."""
        for _, deadline, future in self._waiting:
            if deadline < passed:
                resolve(future, None, timed_out(NotRunError))
        self._is_checked = bool(self._waiting)
        return self._is_checked

    def close(self) -> None:
        """Send all that waits, and close the connection after the replies."""
        while self._waiting:
            self._flush()
        self.channel.close()

    def _flush_soon(self) -> None:
        """Flush after all that is ready now, so that requests of one turn of the loop share a flight."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self._waiting:
            if taken := self._take():
                self._last_was_lone = len(taken) == 1
                self._post(taken)
                return

    def _take(self) -> list[_Request]:
        """Take a share of the waiting requests. They share a deadline.

        Those that were left, or whose deadline has passed, consume nothing.
        """
        waiting, now, count, taken = self._waiting, self._clock.now, 0, []
        least, most = waiting[0][1] - _SAME_TIME, waiting[0][1] + _SAME_TIME
        # Without a cluster, half of them, so that server and process work at one time. Requests over several servers
        # come back together, and larger flights save a tenth of the processor time.
        share = len(waiting) if self._is_cluster else max(_WORTHWHILE, (len(waiting) + 1) // 2)
        for request in waiting[: min(_MAX_FLIGHT, share)]:
            _, deadline, future = request
            if not least <= deadline <= most:
                break
            count += 1
            if deadline <= now:
                resolve(future, None, timed_out(NotRunError))
            elif not future.done():
                taken.append(request)
        del waiting[:count]
        return taken

    def _post(self, taken: Sequence[_Request]) -> None:
        """Send to the open connection in this turn of the loop. Only a task can connect first."""
        calls, deadline, _ = taken[-1]
        if len(taken) > 1:
            calls = [call for request in taken for call in request[0]]
        commands = (calls,) if len(calls) == 1 else commands_of(calls)
        flight = Flight(len(commands), deadline, partial(self._end, taken, commands))
        self._out += 1
        try:
            frame = frame_of(calls) if len(calls) == 1 else b"".join(map(frame_of, commands))
            if (connection := self.channel.connection) is not None:
                connection.post(frame, flight)
                return
        except Exception as error:  # an argument that cannot be packed, or a connection that has just failed
            flight.end([], error)
            return
        task = self._loop.create_task(self._connect_and_send(frame, flight))
        self._tasks.add(task)  # an eager task may have ended already
        task.add_done_callback(partial(self._forget, flight))

    async def _connect_and_send(self, frame: bytes, flight: Flight) -> None:
        try:
            replies = await (await self.channel.send(frame, flight.expected, flight.deadline))
        except Exception as error:
            flight.end([], error)
        else:
            flight.end(replies, None)

    def _forget(self, flight: Flight, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # by code that cancels all tasks of its loop, maybe before this one began
            flight.end([], timed_out())

    def _end(
        self, taken: Sequence[_Request], commands: Commands, replies: Sequence[Any], error: Exception | None
    ) -> None:
        """Give calls their replies in the turn of the loop that reads them, and send what has come meanwhile."""
        self._out -= 1
        if error is None:
            for calls, reply in zip(commands, replies, strict=True):
                receive(calls, reply)
        for _, _, future in taken:
            resolve(future, None, error)
        if self._waiting:
            self._flush_soon() if self._is_cluster or error is not None else self._flush()
