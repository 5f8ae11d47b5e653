"""The connection to one server for an event loop. redis-py makes it and logs in; calls are made here, one after another
without waiting for the replies in between, which come in the same order.

A line on which a call was given up gets no more calls, as its server may never answer; those that are out still may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import redis.asyncio
from hiredis import Reader, ReplyError, pack_command

from .address import Address
from .problems import Command, is_demoted

__all__ = ["AsyncLine", "AsyncLines", "aconnected"]

_KINDS: Final = {
    "tcp": redis.asyncio.Connection,
    "tls": redis.asyncio.SSLConnection,
    "unix": redis.asyncio.UnixDomainSocketConnection,
}
_MORE: Final = object()


async def aconnected(address: Address, host: str, port: int) -> AsyncLine:
    """A new line to one of the servers at an address."""
    kind, options = address.options(host, port)
    connection: Any = _KINDS[kind](socket_timeout=None, socket_connect_timeout=None, **options)
    try:
        await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return AsyncLine(connection)


class AsyncLine(asyncio.Protocol):
    """A connection that is logged in."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(notEnoughData=_MORE)
        self._out: deque[asyncio.Future[Any]] = deque()
        self.usable = True

    async def call(self, *commands: Command) -> Any:
        """The reply to the last of the commands; raises ``ReplyError`` for an error that the server has said."""
        replies = [self._loop.create_future() for _ in commands]
        self._out += replies
        self._transport.write(b"".join(map(pack_command, commands)))
        try:
            reply = await replies[-1]
        except asyncio.CancelledError:
            self.retire()
            raise
        if isinstance(reply, ReplyError):
            if is_demoted(reply):
                self.retire()
            raise reply
        return reply

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not _MORE:
            waiting = self._out.popleft()
            if not waiting.done():
                waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        for waiting in self._out:
            if not waiting.done():
                waiting.set_exception(ConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    def retire(self) -> None:
        """No more calls; closed as soon as nobody waits for those that are out."""
        self.usable = False
        if all(waiting.done() for waiting in self._out):
            self.close()

    def close(self) -> None:
        self.usable = False
        self._transport.abort()
        self._connection._close()  # it would warn that it was not


class AsyncLines:
    """The line to one server, made when it is needed and there is none."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncLine]]) -> None:
        self._connect = connect
        self._line: AsyncLine | None = None
        self._connecting = asyncio.Lock()

    async def call(self, *commands: Command) -> Any:
        """The reply to the last of the commands, which go one after another."""
        line = self._line
        if line is None or not line.usable:
            line = await self._connected()
        return await line.call(*commands)

    async def _connected(self) -> AsyncLine:
        async with self._connecting:  # of several calls one makes the line, for all
            if self._line is None or not self._line.usable:
                self._line = await self._connect()
            return self._line

    async def aclose(self) -> None:
        if self._line is not None:
            self._line.close()
            await asyncio.sleep(0)  # the loop's turn to let go of it
