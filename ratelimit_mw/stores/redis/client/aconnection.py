"""The connection to one server for an event loop. Calls are made one after another without waiting for the replies in
between, which come in the same order.

A line whose server is silent gets no more calls; those that are out may still be answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from typing import Any, Final, cast

from hiredis import HiredisError, Reader, ReplyError, pack_command

from ..address import Address
from .connect import areached
from .errors import Command, discreet, is_demoted

__all__ = ["AsyncLine", "AsyncLines", "aconnected"]

_MORE: Final = object()
_LOST: Final = "the connection was lost"


async def aconnected(address: Address, host: str, port: int, patience: float) -> AsyncLine:
    """A new line, logged in, to one of the servers at an address. The caller bounds it."""
    line = await areached(address, host, port, patience, partial(AsyncLine, patience))
    try:
        for command in address.login:
            await line.call(command)
    except BaseException:
        line.close()
        raise
    return line


class AsyncLine(asyncio.Protocol):
    """One connection. A call that is given up after more than half of ``patience`` seconds is a silent server's."""

    def __init__(self, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._waits_since = 0.0
        self._reader = Reader(notEnoughData=_MORE)
        self._out: deque[asyncio.Future[Any] | None] = deque()
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def call(self, *commands: Command) -> Any:
        """The reply to the last of the commands; raises ``ReplyError`` for an error that the server has said."""
        if not self.usable:
            raise ConnectionError(_LOST)
        if not self._out:
            self._waits_since = self._loop.time()
        waiting = self._loop.create_future()
        self._out += (*repeat(None, len(commands) - 1), waiting)
        self._transport.write(b"".join(map(pack_command, commands)))
        try:
            reply = await waiting
        except asyncio.CancelledError:
            if self._loop.time() - self._waits_since > self._patience / 2:
                self.retire()  # else it is the client who went away, and the others go on
            raise
        if isinstance(reply, ReplyError):
            if is_demoted(reply):
                self.retire()
            raise discreet(reply)
        return reply

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MORE:
                waiting = self._out.popleft()
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply)
        except (HiredisError, IndexError) as error:  # what is said is no reply, or nobody has asked
            self.connection_lost(error)
        self._waits_since = self._loop.time()
        if not self.usable:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()
        for waiting in self._out:
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionError(f"{_LOST}: {exc or 'closed by the server'}"))

    def retire(self) -> None:
        """No more calls; closed as soon as nobody waits for those that are out."""
        self.usable = False
        if all(waiting is None or waiting.done() for waiting in self._out):
            self.close()

    def close(self) -> None:
        self.usable = False
        self._transport.abort()


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

    def retire(self) -> None:
        """No more calls over the line that there is."""
        if self._line is not None:
            self._line.retire()

    async def aclose(self) -> None:
        if self._line is not None:
            self._line.close()
            await asyncio.sleep(0)  # the loop's turn to let go of it
