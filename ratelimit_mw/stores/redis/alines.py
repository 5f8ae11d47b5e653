"""Connections to one server for one event loop: the awaitable twin of lines.py. Deadlines are the caller's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio as aredis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from .address import Address
from .message import Message

__all__ = ["AsyncLines", "aconnected", "aevaluate"]

Line = Any
"""A connection of redis-py."""

_KINDS = {"tcp": aredis.Connection, "tls": aredis.SSLConnection, "unix": aredis.UnixDomainSocketConnection}


async def aconnected(address: Address, host: str, port: int) -> Line:
    """A new connection to one of the servers at an address, logged in."""
    kind, options = address.options(host, port)
    line: Line = _KINDS[kind](socket_timeout=None, socket_connect_timeout=None, **options)
    try:
        await line.connect()
    except BaseException:
        await line.disconnect(nowait=True)
        raise
    return line


class AsyncLines:
    """The connections to one server that no call is using, the last one used first."""

    def __init__(self, connect: Callable[[], Awaitable[Line]]) -> None:
        self._connect = connect
        self._idle: list[Line] = []
        self._closed = False

    async def send(self, *commands: tuple[Any, ...]) -> Any:
        """The reply to the last of the commands, which go one after another over one connection."""
        line, reply = await self._take(), None
        try:
            for command in commands:
                await line.send_packed_command(line.pack_command(*command), check_health=False)
                reply = await line.read_response()
        except ReadOnlyError:  # it has become a replica; ask anew who is the primary
            await line.disconnect(nowait=True)
            await self.drop()
            raise
        except ResponseError:
            await self._keep(line)
            raise
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        await self._keep(line)
        return reply

    async def _take(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if await _is_open(line):
                return line
            await line.disconnect(nowait=True)
        return await self._connect()

    async def _keep(self, line: Line) -> None:
        if self._closed:
            await line.disconnect(nowait=True)
        else:
            self._idle.append(line)

    async def drop(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop().disconnect()

    async def aclose(self) -> None:
        self._closed = True
        await self.drop()


async def _is_open(line: Line) -> bool:
    """Whether a connection still stands and nothing is left on it; redis-py 8 has another name for this."""
    try:
        return not await (line.can_read if hasattr(line, "can_read") else line.can_read_destructive)()
    except (RedisError, OSError):
        return False


async def aevaluate(send: Callable[[tuple[Any, ...]], Awaitable[Any]], message: Message) -> Any:
    """The reply to a message; a server that does not know the script is told it, with the same call once more."""
    script, arguments = message.script, message.arguments
    try:
        return await send((b"EVALSHA", script.sha, *arguments))
    except NoScriptError:
        return await send((b"EVAL", script.text, *arguments))
