"""Calls to a server over a socket: connect, send, and cut what is received into the replies of each call.

A codec does the cutting: bytes go in by ``feed``, and ``gets`` returns a reply, or ``MORE``. Replies come in the order
of the calls. A ``BlockingChannel`` has a connection for each thread that calls, a ``LoopChannel`` one for all calls of
its event loop. Both work within the time budget of a call, and send nothing twice.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from .budget import LoopClock, ThreadClock

MORE: Final = object()
"""The value that a codec returns until it has a whole reply."""
_CHUNK: Final = 65_536
_MAYBE_TLS: Final = " (for a server with TLS, write rediss:// or memcacheds://)"
_TLS_ALERT: Final = b"\x15\x03"
_LOST: Final = "the connection was lost"
_UNASKED: Final = "the server sent a reply without a command"
_CONNECTING: Final = 0.9
"""The part of the time of a call in which it connects. So nothing was sent, and the reason is known, when it ends."""
_Result = TypeVar("_Result")


class ReplyError(Exception):
    """An error that a server has replied, or bytes that are no reply of its kind."""


class NotConnectedError(TimeoutError):
    """The deadline of a call has passed before there was a connection, so nothing was sent."""


class Codec(Protocol):
    def feed(self, data: bytes, /) -> None: ...
    def gets(self) -> Any: ...


def _until(clock: ThreadClock | LoopClock, deadline: float) -> float:
    return clock.now + (deadline - clock.now) * _CONNECTING


def _hint_of(plain: socket.socket, is_encrypted: bool) -> str:
    """Return the likely reason why a server ends a connection before its first reply."""
    return "" if is_encrypted or plain.family == socket.AF_UNIX else _MAYBE_TLS


# -- blocking ------------------------------------------------------------------------------------------------------


class BlockingConnection:
    """A connection for one call at a time, which ends by a time of the clock."""

    is_usable = True

    def __init__(self, connected: socket.socket, codec: Codec, clock: ThreadClock) -> None:
        self.close = connected.close
        self._clock = clock
        self._socket = connected
        self._codec = codec
        self._hint = _hint_of(connected, isinstance(connected, ssl.SSLSocket))
        self._seconds = -1.0
        self._readable = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._readable.register(connected.fileno(), selectors.EVENT_READ)

    def __del__(self) -> None:
        self.close()  # without a warning: an application may end without closing its store

    def shake_hands(self, encrypted: ssl.SSLSocket, deadline: float) -> None:
        self._deadline = deadline
        try:
            self._within(ssl.SSLSocket.do_handshake, encrypted)
        except BaseException:
            self.close()
            raise

    def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        self._deadline = deadline
        sent = self._socket.send(frame)  # all, unless the buffer of the system is full
        while sent < len(frame):
            sent += self._within(self._socket.send, frame[sent:])
        return self._replies(replies)

    async def _replies(self, count: int) -> list[Any]:
        return self.receive(count)

    def receive(self, count: int) -> list[Any]:
        """Return the next replies."""
        feed, gets = self._codec.feed, self._codec.gets
        replies: list[Any] = []
        while len(replies) < count:
            try:
                data = self._within(self._socket.recv, _CHUNK)
            except ConnectionError as error:
                raise ConnectionError(f"{error}{self._hint}") from error
            if not data or (self._hint and data.startswith(_TLS_ALERT)):
                raise ConnectionError(f"the server closed the connection{self._hint}")
            self._hint = ""  # it has replied
            feed(data)
            while (reply := gets()) is not MORE:
                replies.append(reply)
        if len(replies) > count:
            raise ConnectionError(_UNASKED)
        return replies

    def _within(self, call: Callable[[Any], _Result], argument: Any) -> _Result:
        """Return the result of an operation of the socket, or ``TimeoutError`` at the deadline."""

        def attempt(seconds: float) -> _Result:
            if seconds != self._seconds:  # to set it is a system call
                self._seconds = seconds
                self._socket.settimeout(seconds)
            return call(argument)

        return self._clock.wait(attempt, self._deadline)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and has nothing to read."""
        return not self._readable.select(0)


class BlockingChannel:
    """The connections of threads to one server: those that are idle, last used first. No thread waits for another one.

    Its coroutines block: they never wait for an event loop, so ``run_blocking`` runs them and those that call them.
    """

    connection = None

    def __init__(self, connect: Callable[[float], Awaitable[Any]], clock: ThreadClock) -> None:
        self._connect = connect
        self._clock = clock
        self._idle: list[Any] = []

    async def send(self, frame: Any, replies: int, deadline: float) -> Awaitable[list[Any]]:
        connection = self._take() or await self._connect(_until(self._clock, deadline))
        try:
            flight = connection.send(frame, replies, deadline)
        except BaseException:
            self._drop(connection)
            raise
        return self._receive(connection, flight)

    async def _receive(self, connection: Any, flight: Awaitable[list[Any]]) -> list[Any]:
        try:
            replies = await flight
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        return replies

    def _drop(self, connection: Any) -> None:
        """Close a connection that failed. The idle ones may be dead too, and no other call should have to find out."""
        connection.close()
        self.close()

    def _take(self) -> Any:
        while (connection := self._pop()) is not None and not connection.is_quiet():
            connection.close()
        return connection

    def _pop(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:  # a check before would race with other threads
            return None

    def close(self) -> None:
        """Close the idle connections. One in use stays for the next call, or until nothing refers to the channel."""
        while (connection := self._pop()) is not None:
            connection.close()


# -- on an event loop ----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Flight:
    """A call that was sent. ``end`` takes its replies, and the error of the connection if there is one, once."""

    expected: int
    deadline: float
    end: Callable[[list[Any], Exception | None], object]
    replies: list[Any] = field(default_factory=list)
    is_over: bool = False


def resolve(future: asyncio.Future[_Result], result: _Result, error: Exception | None) -> None:
    """End a future, unless its request has left."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # the request may leave yet: asyncio would log the error


class LoopConnection(asyncio.Protocol):
    """A connection that calls share. A call that is given up leaves it: its replies are read and dropped."""

    def __init__(self, codec: Codec, clock: LoopClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._codec = codec
        self._flights: deque[Flight] = deque()
        self._is_checked = False
        self._hint = ""
        self._transport: Any = None
        self.is_usable = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._hint = _hint_of(transport.get_extra_info("socket"), bool(transport.get_extra_info("sslcontext")))

    def send(self, frame: bytes, replies: int, deadline: float) -> asyncio.Future[list[Any]]:
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self.post(frame, Flight(replies, deadline, partial(resolve, future)))
        return future

    def post(self, frame: bytes, flight: Flight) -> None:
        """Send the bytes of a call now."""
        if self._transport is None:
            raise ConnectionError(_LOST)
        self._transport.write(frame)  # that of uvloop raises an error when the connection has just ended
        self._flights.append(flight)
        if not self._is_checked:
            self._is_checked = True
            self._clock.check(self._give_up)

    def _give_up(self, passed: float) -> bool:
        """End the calls whose deadline has passed. Return whether there are others."""
        overdue = [each for each in self._flights if each.deadline < passed and not each.is_over]
        if overdue:
            self.is_usable = False
            self._end(overdue, TimeoutError())
        self._is_checked = bool(self._flights)
        return self._is_checked

    def data_received(self, data: bytes) -> None:
        flights, finished = self._flights, list[Flight]()
        if self._hint and data.startswith(_TLS_ALERT):
            self._fail(ConnectionError(f"{_LOST}: closed by the server{self._hint}"))
            return
        self._hint = ""  # the server has replied
        try:
            self._codec.feed(data)
            while (reply := self._codec.gets()) is not MORE:
                if not flights:
                    raise ConnectionError(_UNASKED)
                flight = flights[0]
                flight.replies.append(reply)
                if len(flight.replies) == flight.expected:
                    finished.append(flights.popleft())
        except Exception as error:  # bytes that are no reply, too
            flights.extend(finished)
            self._fail(error)
            return
        self._end(finished)

    def _end(self, flights: Iterable[Flight], error: Exception | None = None) -> None:
        for each in flights:
            if not each.is_over:
                each.is_over = True
                each.end(each.replies, error)
        if not self.is_usable:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"{_LOST}: {exc or 'closed by the server'}{self._hint}"))

    def _fail(self, error: Exception) -> None:
        self.close()
        flights, self._flights = self._flights, deque()
        self._end(flights, error)

    def retire(self) -> None:
        """Close after the last call that was sent. It gets no more calls."""
        self.is_usable = False
        if all(each.is_over for each in self._flights):
            self.close()

    def close(self) -> None:
        self.is_usable = False
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class LoopChannel:
    """The connection of an event loop to one server, opened when a call needs it."""

    def __init__(self, connect: Callable[[float], Awaitable[Any]], clock: LoopClock) -> None:
        self._connect = connect
        self._clock = clock
        self._connection: Any = None
        self._opening: asyncio.Task[Any] | None = None

    @property
    def connection(self) -> Any:
        """The open connection, unless a reply to it was overdue."""
        connection = self._connection
        return connection if connection is not None and connection.is_usable else None

    async def send(self, frame: Any, replies: int, deadline: float) -> Awaitable[list[Any]]:
        connection = self.connection or await self._open(deadline)
        flight: Awaitable[list[Any]] = connection.send(frame, replies, deadline)
        return flight

    async def _open(self, deadline: float) -> Any:
        """Wait until one task has connected for all calls, at most until the deadline."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.get_running_loop().create_task(self._reconnect(deadline))
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await self._clock.result(self._opening, deadline)
        except TimeoutError as error:
            raise NotConnectedError from error

    async def _reconnect(self, deadline: float) -> Any:
        self._connection = connection = await self._connect(_until(self._clock, deadline))
        return connection

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.retire()
