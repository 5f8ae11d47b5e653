"""Calls to one server, or to the primary that the sentinels name, and operations in calls of their own.

Blocking calls and event loops share the code. batch.py lets the requests of an event loop share calls.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from redis import ResponseError

from ....errors import StoreError
from ...base import Facts
from ...blocking import run_blocking
from ...budget import LoopClock, ThreadClock
from ..address import Address
from ..call import Call, calls_of
from .errors import as_store_error, error_code
from .facts import SECONDS, facts_of_server
from .transport import Transport, call

_DOWN: Final = {"s_down", "o_down", "disconnected"}
_turns: Final = itertools.count()


class Target(ABC):
    """The servers that calls go to."""

    name = ""

    @abstractmethod
    def ask(self, message: Call, deadline: float) -> Coroutine[Any, Any, None]:
        """Give a message its reply. On an event loop the caller bounds the call."""

    async def ask_each(self, messages: Sequence[Call], deadline: float) -> None:
        """Give each message its reply, or its error. The messages of a cluster go out at once."""
        for each in messages:
            try:
                await self.ask(each, deadline)
            except Exception as error:
                each.fail(error)

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        """Return a key on each primary."""
        return ["ping"]

    def facts(self) -> Iterator[Facts]:
        """Yield facts about each server. Blocking."""
        yield from ()

    def close(self) -> None:  # noqa: B027 - a client of the application stays open
        """Close the connections."""


class Server(Target):
    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._location = address.hosts[0] if address.hosts else ("", 0)
        self._pool = transport.channel(self._connect)

    async def ask(self, message: Call, deadline: float) -> None:
        (reply,) = await (await self._pool.send(message.frame, 1, deadline))
        await self._take(message, reply, deadline)

    async def ask_each(self, messages: Sequence[Call], deadline: float) -> None:
        """Send all calls together."""
        try:
            frames = [each.frame for each in messages]
            replies = await (await self._pool.send(b"".join(frames), len(frames), deadline))
        except Exception as error:
            for each in messages:
                each.fail(error)
            return
        for each, reply in zip(messages, replies, strict=True):
            try:
                await self._take(each, reply, deadline)
            except Exception as error:
                each.fail(error)

    async def _take(self, message: Call, reply: Any, deadline: float) -> None:
        """A server that lacks the script gets the call once more, with the script."""
        if isinstance(reply, ResponseError):
            if (code := error_code(reply)) == "READONLY":
                self._pool.close()  # the next call looks for the primary again
            if code != "NOSCRIPT":
                raise reply
            message.has_text = True
            reply = await call(self._pool, message.command, deadline)
        message.receive(reply)

    def close(self) -> None:
        self._pool.close()

    def facts(self) -> Iterator[Facts]:
        address, transport = self._address, self._transport
        if not address.service:
            yield facts_of_server("redis", address, transport, self._location)
            return
        master = b"SENTINEL", b"MASTER", address.service.encode()
        for location in address.hosts:
            yield facts_of_server("sentinel", address.sentinels, transport, location, *master)
        try:
            announced = run_blocking(find_primary(address, transport, transport.clock.now + SECONDS))
        except Exception as error:
            yield Facts("primary", address.service, {}, str(as_store_error(error)), False)
        else:
            yield facts_of_server("redis", address, transport, address.locate(*announced))

    async def _connect(self, deadline: float) -> Any:
        location = self._location
        if self._address.service:
            announced = await find_primary(self._address, self._transport, deadline)
            location = self._address.locate(*announced)
        return await self._transport.connect(self._address, *location, deadline)


class Caller:
    """Sends operations in calls of their own."""

    def __init__(self, target: Target, clock: ThreadClock | LoopClock) -> None:
        self.target = target
        self.clock = clock
        """The clock of deadlines."""

    def ask(self, operation: Call, deadline: float) -> Awaitable[Any]:
        """Return the result of an operation, to be awaited. Raises ``StoreError`` at the deadline."""
        return self.ask_alone(operation, deadline)

    def ask_each(self, operations: Sequence[Call], deadline: float) -> Awaitable[None]:
        """Give the operations of one request their results. Each has its ``slot``."""
        return self._ask_each(operations, deadline)

    async def ask_alone(self, operation: Call, deadline: float) -> Any:
        """Return the result of an operation, in a call of its own that the caller bounds."""
        try:
            await self.target.ask(operation, deadline)
        except Exception as error:
            operation.fail(error)
            raise operation.result from error
        if isinstance(operation.result, StoreError):
            raise operation.result
        return operation.result

    async def _ask_each(self, operations: Sequence[Call], deadline: float) -> None:
        try:
            await self.target.ask_each(calls_of(operations), deadline)
        except Exception as error:  # before anything was sent
            for each in operations:
                each.fail(error)


async def find_primary(address: Address, transport: Transport, deadline: float) -> tuple[str, int]:
    """Return the host and port of the primary. A silent sentinel leaves time for the others and for the primary."""
    count, first = len(address.hosts), next(_turns)  # each search starts with another sentinel
    failure: Exception = LookupError()
    for i in range(count):
        now = transport.clock.now
        until = now + (deadline - now) / (count - i + 1)
        sentinel = transport.open(address.sentinels, *address.hosts[(first + i) % count])
        try:
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
