"""Calls to one server, or to the primary that the sentinels name: blocking, and for an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from redis import ResponseError

from ..address import Address
from ..message import Message
from .aconnection import AsyncRedisConnection, AsyncRedisConnectionHolder, aconnect
from .connection import DeadlineCalls, RedisConnectionPool, connect
from .errors import Command, is_unknown_script
from .sentinel import afind_primary, find_primary


class Server:
    """For threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool = RedisConnectionPool(self._connect)

    def ask(self, message: Message, deadline: float) -> Any:
        return evaluate(partial(self._pool.call, deadline=deadline), message)

    def close(self) -> None:
        self._pool.close()

    def _connect(self, deadline: float) -> DeadlineCalls:
        address = self._address
        host, port = find_primary(address, deadline) if address.service else address.first
        return connect(address, host, port, deadline)


class AsyncServer:
    """For one event loop. The caller bounds each call."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._holder = AsyncRedisConnectionHolder(self._connect)

    def ask(self, message: Message) -> Awaitable[Any]:
        return aevaluate(self._holder.call, message)

    async def aclose(self) -> None:
        await self._holder.aclose()

    async def _connect(self) -> AsyncRedisConnection:
        address = self._address
        host, port = await afind_primary(address, self._timeout) if address.service else address.first
        return await aconnect(address, host, port, self._timeout)


def evaluate(call: Callable[[Command], Any], message: Message) -> Any:
    """The reply to a message. A server that does not know the script gets the call once more, with the script."""
    script, arguments = message.script, message.arguments
    try:
        return call((b"EVALSHA", script.sha, *arguments))
    except ResponseError as error:
        if not is_unknown_script(error):
            raise
    return call((b"EVAL", script.text, *arguments))


async def aevaluate(call: Callable[[Command], Awaitable[Any]], message: Message) -> Any:
    """Async form of `evaluate`."""
    script, arguments = message.script, message.arguments
    try:
        return await call((b"EVALSHA", script.sha, *arguments))
    except ResponseError as error:
        if not is_unknown_script(error):
            raise
    return await call((b"EVAL", script.text, *arguments))
