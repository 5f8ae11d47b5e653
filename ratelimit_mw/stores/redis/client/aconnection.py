"""Connections to one server for an event loop. redis-py logs in, selects and parses.

Calls share a connection: each sends at once, and the replies come in the same order. One call at a time reads, for
itself and for the calls before it. A connection whose server is silent gets no more calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis
import redis.asyncio
from hiredis import pack_command

from ..address import Address
from .connect import open_stream
from .credentials import credentials
from .errors import Command, is_read_only

__all__ = ["AsyncRedisConnection", "AsyncRedisConnectionHolder", "aconnect"]

_LOST: Final = "the connection was lost"


class ReplyStream(asyncio.StreamReader):
    """Notes when the server sent something, and fails when no call waits for it."""

    def __init__(self, connection: AsyncCalls) -> None:
        super().__init__()
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        self._connection.heard_at = self._connection.loop.time()
        if self._connection.is_ready and not self._connection.turns:
            self.set_exception(ConnectionError("the server sent a reply without a call"))
        else:
            super().feed_data(data)


class Turn:
    """A call whose replies are outstanding, in the order of sending."""

    __slots__ = ("is_cancelled", "last", "replies", "wakes")

    def __init__(self, replies: int) -> None:
        self.replies = replies
        self.last: Any = None
        self.wakes: asyncio.Future[None] | None = None
        self.is_cancelled = False

    def wake(self, error: Exception | None = None) -> None:
        if self.wakes is not None and not self.wakes.done():
            if error is None:
                self.wakes.set_result(None)
            else:
                self.wakes.set_exception(error)


class AsyncCalls:
    """Adds a bounded connect and calls that share the connection to a connection of redis-py."""

    host: str
    port: int
    is_connected: bool
    send_packed_command: Callable[..., Awaitable[None]]
    read_response: Callable[..., Awaitable[Any]]

    def prepare(self, address: Address, timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns: deque[Turn] = deque()
        self.heard_at = 0.0
        self.is_ready = False
        self._address = address
        self._timeout = timeout
        self._is_retired = False
        self._is_read = False  # by a call

    async def _connect(self) -> None:
        host, port = (self.host, self.port) if self._address.hosts else ("", 0)
        self._stream = ReplyStream(self)
        protocol = asyncio.StreamReaderProtocol(self._stream)
        self._transport = await open_stream(self._address, host, port, self._timeout, protocol)
        self._reader: Any = self._stream
        self._writer: Any = asyncio.StreamWriter(self._transport, protocol, self._stream, self.loop)

    @property
    def is_usable(self) -> bool:
        stream = self._stream
        return not self._is_retired and not stream.at_eof() and stream.exception() is None and self.is_connected

    async def call(self, *commands: Command) -> Any:
        """The reply to the last of the commands. Raises ``ResponseError`` for an error reply.

        A call that is cancelled after more than half of the time budget has met a silent server. A call that is
        cancelled earlier belongs to a client that went away, and the connection stays.
        """
        if not self.is_usable:
            raise ConnectionError(_LOST)
        if not self.turns:
            self.heard_at = self.loop.time()
        turn = Turn(len(commands))
        self.turns.append(turn)
        try:
            await self.send_packed_command(b"".join(map(pack_command, commands)), check_health=False)
            await self._read(turn)
        except asyncio.CancelledError:
            turn.is_cancelled = True
            if self.loop.time() - self.heard_at > self._timeout / 2:
                self.retire()
            raise
        except BaseException:
            self.close()
            raise
        if isinstance(turn.last, redis.ResponseError):
            if is_read_only(turn.last):
                self.retire()
            raise turn.last
        if self._is_retired:
            self.retire()
        return turn.last

    async def _read(self, turn: Turn) -> None:
        """Wait until the replies of a turn are there."""
        if self._is_read and turn.replies:
            turn.wakes = self.loop.create_future()
            try:
                await turn.wakes
            except asyncio.CancelledError:
                turn.is_cancelled = True
                if turn.replies and not turn.wakes.cancelled():
                    self._pass_on()  # this call was to read next
                raise
        if not turn.replies:
            return
        self._is_read = True
        try:
            while turn.replies:
                try:
                    reply = await self.read_response(disconnect_on_error=False)
                except redis.ResponseError as error:
                    reply = error
                first = self.turns[0]
                first.replies -= 1
                if not first.replies:
                    first.last = reply
                    first.wake()
                    self.turns.popleft()
        except asyncio.CancelledError:
            turn.is_cancelled = True
            raise
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the next call read."""
        self._is_read = False
        for turn in self.turns:
            if not turn.is_cancelled:
                self._is_read = turn.wakes is not None  # a call that still sends reads when it has sent
                turn.wake()
                return

    def retire(self) -> None:
        """Take no more calls. Close as soon as no call waits."""
        self._is_retired = True
        if all(turn.is_cancelled for turn in self.turns):
            self.close()

    def close(self) -> None:
        self._is_retired = True
        if (transport := getattr(self, "_transport", None)) is not None:
            transport.abort()
        self._reader = self._writer = None
        while self.turns:
            self.turns.popleft().wake(ConnectionError(_LOST))


class AsyncRedisConnection(AsyncCalls, redis.asyncio.Connection):  # type: ignore[misc]
    """A connection over TCP, with or without TLS."""


class AsyncUnixConnection(AsyncCalls, redis.asyncio.UnixDomainSocketConnection):  # type: ignore[misc]
    """A connection over a Unix domain socket."""


async def aconnect(address: Address, host: str, port: int, timeout: float) -> AsyncCalls:
    """A new connection, logged in, to one of the servers of an address. The caller bounds it."""
    options: dict[str, Any] = {**address.options, **credentials(address)}
    where = {"path": address.path} if address.path else {"host": host, "port": port}
    kind: Any = AsyncUnixConnection if address.path else AsyncRedisConnection
    connection = kind(**where, **options)
    connection.prepare(address, timeout)
    try:
        await connection.connect()
    except BaseException:
        connection.close()
        raise
    connection.is_ready = True
    return connection  # type: ignore[no-any-return]


class AsyncRedisConnectionHolder:
    """The connection to one server, opened when a call needs it."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncCalls]]) -> None:
        self._connect = connect
        self._connection: AsyncCalls | None = None
        self._connecting = asyncio.Lock()

    async def call(self, *commands: Command) -> Any:
        """The reply to the last of the commands, which go one after another."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            connection = await self._connected()
        return await connection.call(*commands)

    async def _connected(self) -> AsyncCalls:
        async with self._connecting:  # one of several calls connects for all
            if self._connection is None or not self._connection.is_usable:
                if self._connection is not None:
                    self._connection.retire()
                self._connection = await self._connect()
            return self._connection

    def retire(self) -> None:
        if self._connection is not None:
            self._connection.retire()

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.close()
            await asyncio.sleep(0)  # lets the loop close the transport
