"""How to reach one server of Redis: blocking, or on an event loop."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

from hiredis import pack_command
from redis import ResponseError

from ..address import Address
from .errors import Command


class ConnectionPool(Protocol):
    """The connections to one server."""

    async def send(self, frames: Sequence[bytes], deadline: float) -> Callable[[], Awaitable[list[Any]]]:
        """Send commands over one connection. Return the call that awaits the reply, or the error reply, to each."""
        ...

    def retire(self) -> None: ...
    def close(self) -> None: ...


class Transport(NamedTuple):
    """How to wait and to connect: blocking, or on an event loop."""

    time: Callable[[], float]
    """The clock of deadlines, in seconds."""
    timeout_at: Callable[[float], AbstractContextManager[Any]]
    """Bounds calls on an event loop. A blocking call is bounded by its socket."""
    lock: Callable[[], AbstractAsyncContextManager[Any]]
    connect: Callable[[Address, str, int, float], Awaitable[Any]]
    pool: Callable[[Callable[[float], Awaitable[Any]]], ConnectionPool]

    def open(self, address: Address, host: str, port: int) -> ConnectionPool:
        return self.pool(partial(self.connect, address, host, port))


async def call(pool: ConnectionPool, command: Command, deadline: float) -> Any:
    """Return the reply to a command. Raises ``ResponseError`` for an error reply."""
    (reply,) = await (await pool.send((pack_command(command),), deadline))()
    if isinstance(reply, ResponseError):
        raise reply
    return reply
