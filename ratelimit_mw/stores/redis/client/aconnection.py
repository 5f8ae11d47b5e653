"""Connections to one server for an event loop. redis-py connects and logs in; then calls share the connection.

Each call sends at once, and the replies come in the same order. The streams of redis-py serve one call at a time and
cost 12 us more per call. A connection whose server is silent gets no more calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import redis
import redis.asyncio
from hiredis import HiredisError, Reader

from ...budget import LoopClock
from ..address import Address
from .connect import new_connection, open_stream
from .transport import Transport

_MORE: Final = object()
_LOST: Final = "the connection was lost"


class BoundedConnect:
    """Adds a bounded connect to a connection of redis-py."""

    open_arguments: tuple[Address, str, int, float, LoopClock]
    transport: Any = None

    async def _connect(self) -> None:
        self._reader: Any = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reader)
        self.transport = await open_stream(*self.open_arguments, protocol)
        self._writer: Any = asyncio.StreamWriter(self.transport, protocol, self._reader, asyncio.get_running_loop())

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._reader = self._writer = None


class TcpLogin(BoundedConnect, redis.asyncio.Connection):
    """Over TCP, with or without TLS."""


class UnixLogin(BoundedConnect, redis.asyncio.UnixDomainSocketConnection):
    """Over a Unix domain socket."""


async def aconnect(
    clock: LoopClock, timeout: float, address: Address, host: str, port: int, deadline: float
) -> AsyncRedisConnection:
    """Return a new connection, logged in, to a server of an address. ``timeout`` is the budget of its calls."""
    login = new_connection(TcpLogin, UnixLogin, address, host, port, deadline, clock)
    try:
        await login.connect()
    except BaseException:
        login.abort()
        raise
    return AsyncRedisConnection(login, clock, timeout)


class _Replies(list[Any]):
    """The replies to commands that were sent together. The result of the future is the error of the connection."""

    def __init__(self, are_complete: asyncio.Future[ConnectionError | None], expected: int) -> None:
        self.are_complete = are_complete
        self.expected = expected


class AsyncRedisConnection(asyncio.Protocol):
    """The connection of a login, which calls share.

    A call that is cancelled after more than half of the time budget has met a silent server. A call that is cancelled
    earlier belongs to a client that went away, and the connection stays.
    """

    def __init__(self, login: BoundedConnect, clock: LoopClock, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = clock.time
        self._login = login
        self._timeout = timeout
        self._heard_at = 0.0
        self._parser = Reader(replyError=redis.ResponseError, notEnoughData=_MORE)
        self._waiting: deque[_Replies] = deque()
        self.is_usable = True
        login.transport.set_protocol(self)

    def send(self, frames: Sequence[bytes]) -> _Replies:
        """Send commands. Pass the result to ``receive``."""
        if not self.is_usable:
            raise ConnectionError(_LOST)
        if not self._waiting:
            self._heard_at = self._time()
        replies = _Replies(self._loop.create_future(), len(frames))
        self._waiting.append(replies)
        self._login.transport.write(b"".join(frames))
        return replies

    async def receive(self, replies: _Replies) -> list[Any]:
        """Return the reply to each command, or the error that the server replied."""
        try:
            error = await replies.are_complete
        except asyncio.CancelledError:
            if self._time() - self._heard_at > self._timeout / 2:
                self.retire()
            raise
        if error is not None:
            raise error
        return replies

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not _MORE:
                replies = self._waiting[0]
                replies.append(reply)
                if len(replies) == replies.expected:
                    self._waiting.popleft()
                    if not replies.are_complete.done():
                        replies.are_complete.set_result(None)
        except (HiredisError, IndexError) as error:  # bytes that are no reply, or a reply without a call
            self.connection_lost(error)
        self._heard_at = self._time()
        if not self.is_usable:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        for replies in self._waiting:
            if not replies.are_complete.done():
                replies.are_complete.set_result(ConnectionError(f"{_LOST}: {exc or 'closed by the server'}"))

    def retire(self) -> None:
        """Take no more calls. Close as soon as no call waits."""
        self.is_usable = False
        if all(replies.are_complete.done() for replies in self._waiting):
            self.close()

    def close(self) -> None:
        self.is_usable = False
        self._login.abort()


class AsyncRedisConnectionHolder:
    """The connection to one server, opened when a call needs it."""

    def __init__(self, connect: Callable[[float], Awaitable[AsyncRedisConnection]]) -> None:
        self._connect = connect
        self._connection: AsyncRedisConnection | None = None
        self._connecting = asyncio.Lock()

    async def send(self, frames: Sequence[bytes], deadline: float) -> Callable[[], Awaitable[list[Any]]]:
        """Send commands, and return the call that awaits their replies. The deadline bounds a connect only."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            async with self._connecting:  # one of several calls connects for all
                connection = self._connection
                if connection is None or not connection.is_usable:
                    connection = self._connection = await self._connect(deadline)
        return partial(connection.receive, connection.send(frames))

    def retire(self) -> None:
        if self._connection is not None:
            self._connection.retire()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def loop_transport(clock: LoopClock, timeout: float) -> Transport:
    """Return the transport of the running event loop. ``timeout`` is the budget of a call."""
    connect = partial(aconnect, clock, timeout)
    return Transport(clock.time, clock.timeout_at, asyncio.Lock, connect, AsyncRedisConnectionHolder)
