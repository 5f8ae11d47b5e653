"""Calls to one server, or to the primary that the sentinels name. Blocking calls and event loops share the code."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from redis import ResponseError

from ....errors import StoreError
from ..address import Address
from ..message import Message
from .errors import Command, as_store_error, error_code

_DOWN: Final = {"s_down", "o_down", "disconnected"}
_turns: Final = itertools.count()


class ConnectionPool(Protocol):
    """The connections to one server."""

    async def send(self, commands: Sequence[Command], deadline: float) -> Callable[[], Awaitable[list[Any]]]:
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


class Target(ABC):
    """The servers that calls go to."""

    name = ""

    @abstractmethod
    def ask(self, message: Message, deadline: float) -> Coroutine[Any, Any, Any]:
        """Return the reply to a message. On an event loop the caller bounds the call."""

    async def ask_each(self, messages: Sequence[Message], deadline: float) -> list[Any]:
        """Return the reply to each message, or its error. The messages of a cluster go out at once."""
        return [await self.ask(message, deadline) for message in messages]

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        """Return a key on each primary."""
        return ["ping"]

    def close(self) -> None:  # noqa: B027 - a client of the application stays open
        """Close the connections."""


class Server(Target):
    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._location = address.hosts[0] if address.hosts else ("", 0)
        self._pool = transport.pool(self._connect)

    def ask(self, message: Message, deadline: float) -> Coroutine[Any, Any, Any]:
        return evaluate(partial(call, self._pool), message, deadline)

    def close(self) -> None:
        self._pool.close()

    async def _connect(self, deadline: float) -> Any:
        location = self._location
        if self._address.service:
            announced = await find_primary(self._address, self._transport, deadline)
            location = self._address.locate(*announced)
        return await self._transport.connect(self._address, *location, deadline)


async def call(pool: ConnectionPool, command: Command, deadline: float) -> Any:
    """Return the reply to a command. Raises ``ResponseError`` for an error reply."""
    (reply,) = await (await pool.send((command,), deadline))()
    if isinstance(reply, ResponseError):
        raise reply
    return reply


async def evaluate(call: Callable[..., Awaitable[Any]], message: Message, deadline: float) -> Any:
    """Return the reply to a message. A server that lacks the script gets the call once more, with the script."""
    try:
        return await call(message.by_hash, deadline=deadline)
    except ResponseError as error:
        if error_code(error) != "NOSCRIPT":
            raise
    return await call(message.by_text, deadline=deadline)


async def find_primary(address: Address, transport: Transport, deadline: float) -> tuple[str, int]:
    """Return the host and port of the primary. A silent sentinel leaves time for the others and for the primary."""
    count, first = len(address.hosts), next(_turns)  # each search starts with another sentinel
    failure: Exception = LookupError()
    for i in range(count):
        now = transport.time()
        until = now + (deadline - now) / (count - i + 1)
        sentinel = transport.open(address.sentinels, *address.hosts[(first + i) % count])
        try:
            with transport.timeout_at(until):
                return _parse_primary(await call(sentinel, (b"SENTINEL", b"MASTER", address.service), until))
        except Exception as error:
            failure = error
        finally:
            sentinel.close()
    raise StoreError(f"no sentinel knows the primary of {address.service!r}: {as_store_error(failure)}")


def _parse_primary(reply: Any) -> tuple[str, int]:
    """Return the location in a reply to SENTINEL MASTER: a map, or names and values in turn."""
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    flags = fields[b"flags"].decode()
    if _DOWN & set(flags.split(",")):
        raise StoreError(f"the primary is {flags}")
    return fields[b"ip"].decode(), int(fields[b"port"])
