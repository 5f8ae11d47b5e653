"""Calls to one server, or to the primary that the sentinels name. Blocking calls and event loops share the code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from redis import ResponseError

from ..address import Address
from ..message import Message
from .errors import error_code
from .sentinel import find_primary


class ConnectionPool(Protocol):
    """The connections to one server. ``call`` is the reply to the last of its commands, which share a connection."""

    def call(self, *commands: Any, deadline: float) -> Awaitable[Any]: ...
    def retire(self) -> None: ...
    def close(self) -> None: ...


class Transport(NamedTuple):
    """How to wait and to connect: blocking, or on an event loop."""

    time: Callable[[], float]
    """The clock of deadlines, in seconds."""
    timeout_at: Callable[[float], AbstractAsyncContextManager[Any]]
    """Bounds calls on an event loop. A blocking call is bounded by its socket."""
    lock: Callable[[], AbstractAsyncContextManager[Any]]
    connect: Callable[[Address, str, int, float], Awaitable[Any]]
    pool: Callable[[Callable[[float], Awaitable[Any]]], ConnectionPool]

    def open(self, address: Address, host: str, port: int) -> ConnectionPool:
        return self.pool(lambda deadline: self.connect(address, host, port, deadline))


class Target(ABC):
    """The servers that calls go to."""

    name = ""

    @abstractmethod
    def ask(self, message: Message, deadline: float) -> Coroutine[Any, Any, Any]:
        """The reply to a message. On an event loop the caller bounds the call."""

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        """A key on each primary."""
        return ["ping"]

    def close(self) -> None:  # noqa: B027 - a client of the application stays open
        """Close the connections."""


class Server(Target):
    """One server."""

    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._pool = transport.pool(self._connect)

    def ask(self, message: Message, deadline: float) -> Coroutine[Any, Any, Any]:
        return evaluate(self._pool.call, message, deadline)

    def close(self) -> None:
        self._pool.close()

    async def _connect(self, deadline: float) -> Any:
        address, transport = self._address, self._transport
        host, port = (
            await find_primary(address, transport, deadline) if address.service else (*address.hosts, ("", 0))[0]
        )
        return await transport.connect(address, host, port, deadline)


async def evaluate(call: Callable[..., Awaitable[Any]], message: Message, deadline: float) -> Any:
    """The reply to a message. A server that does not know the script gets the call once more, with the script."""
    script, arguments = message.script, message.arguments
    try:
        return await call((b"EVALSHA", script.sha, *arguments), deadline=deadline)
    except ResponseError as error:
        if error_code(error) != "NOSCRIPT":
            raise
    return await call((b"EVAL", script.text, *arguments), deadline=deadline)
