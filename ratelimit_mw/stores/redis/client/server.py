"""One server, or whichever the sentinels say is the primary: blocking, and for an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from hiredis import ReplyError

from ..address import Address
from ..message import Message
from .aconnection import AsyncLine, AsyncLines, aconnected
from .connection import Line, Lines, connected
from .errors import Command, is_unknown_script
from .sentinel import aprimary, primary

__all__ = ["AsyncServer", "Server", "aevaluated", "evaluated", "pinging"]


class Server:
    """For threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lines = Lines(self._connect)

    def ask(self, message: Message, deadline: float) -> Any:
        return evaluated(partial(self._lines.call, deadline=deadline), message)

    def delete(self, names: Sequence[bytes], deadline: float) -> None:
        self._lines.call((b"DEL", *names), deadline=deadline)

    def ping(self, name: Callable[[int], bytes], deadline: float) -> None:
        self._lines.call(pinging(name(0)), deadline=deadline)

    def close(self) -> None:
        self._lines.close()

    def _connect(self, deadline: float) -> Line:
        address = self._address
        host, port = primary(address, deadline) if address.service else address.first
        return connected(address, host, port, deadline)


class AsyncServer:
    """For one event loop."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._lines = AsyncLines(self._connect)

    def ask(self, message: Message) -> Awaitable[Any]:
        return aevaluated(self._lines.call, message)

    async def delete(self, names: Sequence[bytes]) -> None:
        await self._lines.call((b"DEL", *names))

    async def ping(self, name: Callable[[int], bytes]) -> None:
        await self._lines.call(pinging(name(0)))

    async def aclose(self) -> None:
        await self._lines.aclose()

    async def _connect(self) -> AsyncLine:
        address = self._address
        host, port = await aprimary(address, self._timeout) if address.service else address.first
        return await aconnected(address, host, port, self._timeout)


def pinging(name: bytes) -> Command:
    """A write that leaves nothing: a server that is full, a replica or loading answers a PING, but takes no hit."""
    return (b"SET", name, b"", b"PX", b"1")


def evaluated(call: Callable[[Command], Any], message: Message) -> Any:
    """The reply to a message; a server that does not know the script is told it, with the same call once more."""
    script, arguments = message.script, message.arguments
    try:
        return call((b"EVALSHA", script.sha, *arguments))
    except ReplyError as error:
        if not is_unknown_script(error):
            raise
    return call((b"EVAL", script.text, *arguments))


async def aevaluated(call: Callable[[Command], Awaitable[Any]], message: Message) -> Any:
    """The same on an event loop."""
    script, arguments = message.script, message.arguments
    try:
        return await call((b"EVALSHA", script.sha, *arguments))
    except ReplyError as error:
        if not is_unknown_script(error):
            raise
    return await call((b"EVAL", script.text, *arguments))
