"""Calls to a cluster: the slots of keys, the servers that have them, and the redirects.

Blocking calls and event loops share the code. A call is sent again only if no server has run it: after a redirect, and
after a failed connect. Replicas are asked for the map only.
"""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from redis import ResponseError

from ..address import Address
from ..message import Message
from .errors import Command, NotRunError, as_store_error, error_code
from .server import ConnectionPool, Target, Transport, call
from .slot_map import SLOTS, Location, SlotMap

_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = (b"ASKING",)
_MOST_HOPS: Final = 6
_MAP_INTERVAL: Final = 0.1  # seconds from one read of the map to the next: a redirect corrects the map for its slot
_UNWELL: Final = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"}
"""Replies of a server that may have lost its slots to another one, and that may not know it."""
_ENDLESS: Final = "Redis: the servers of the cluster redirect to each other"


class Cluster(Target):
    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._slots = SlotMap(address)
        self._pools: dict[Location, ConnectionPool] = {}
        self._refreshing = transport.lock()
        self._next_read = 0.0
        self._failure = ""
        """The reason why there is no map yet."""

    async def ask(self, message: Message, deadline: float) -> Any:
        (reply,) = await self.ask_each([message], deadline)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask_each(self, messages: Sequence[Message], deadline: float) -> list[Any]:
        """Return the reply to each message, or its error. All go out at once, those of one server together."""
        if self._slots.is_stale or not self._slots.version:
            await self._refresh(deadline)
        calls = [Call(message, self._slots) for message in messages]
        for _ in range(_MOST_HOPS):
            if not (waiting := [each for each in calls if each.reply is None]):
                break
            await self._send(waiting, deadline)
        return [NotRunError(_ENDLESS) if each.reply is None else each.reply for each in calls]

    async def _send(self, calls: Sequence[Call], deadline: float) -> None:
        """Send each call to its server, then await all replies. A server that fails fails its own calls only."""
        by_server: dict[Location, list[Call]] = {}
        for each in calls:
            by_server.setdefault(each.location, []).append(each)
        flights = []
        for location, own in by_server.items():
            began = self._transport.time()
            try:
                commands = [command for each in own for command in each.commands]
                receive = await self._watch(location, self._pool(location).send(commands, deadline), began, deadline)
                flights.append((location, own, began, receive))
            except NotRunError as error:
                self._go_around(own, location, error, deadline)
            except Exception as error:
                fail(own, error)
        for location, own, began, receive in flights:
            try:
                replies = iter(await self._watch(location, receive(), began, deadline))
                for each in own:
                    for _ in each.commands:
                        reply = next(replies)
                    if isinstance(reply, ResponseError):
                        each.redirect(reply, self._slots)
                    else:
                        each.reply = reply
            except Exception as error:
                fail(own, error)

    def _go_around(self, calls: Sequence[Call], location: Location, failure: Exception, deadline: float) -> None:
        """Ask another server in place of one that cannot be reached: it names the server that has the slot by now."""
        other = None if self._transport.time() >= deadline else self._slots.other_than(location)
        for each in calls:
            each.go_around(failure, other)

    def server_of(self, slot: int) -> Location | None:
        """Return the server that has a slot, as far as it is known."""
        return self._slots.owners[slot]

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        await self._refresh(deadline)
        return self._slots.samples(slot)

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    async def _refresh(self, deadline: float) -> None:
        """Read the map if it is missing or stale, once in an interval. One of several calls reads it."""
        slots = self._slots
        if slots.version and (not slots.is_stale or monotonic() < self._next_read):
            return
        slots.is_stale = False
        async with self._refreshing:
            if monotonic() >= self._next_read or not (slots.version or self._failure):
                self._next_read = monotonic() + _MAP_INTERVAL
                await self._read_map(deadline)
        if not slots.version:
            raise NotRunError(self._failure)
        for location in set(self._pools).difference(slots.locations()):
            if pool := self._pools.pop(location, None):  # another thread may have taken it
                pool.retire()

    async def _read_map(self, deadline: float) -> None:
        """Ask one server after another for the map. Without a reply, the old map stays in use."""
        for location in self._slots.locations():
            now = self._transport.time()
            until = now + (deadline - now) / 2  # leaves time for another server
            try:
                with self._transport.timeout_at(until):
                    reply = await self._watch(location, call(self._pool(location), _MAP, until), now, until)
                self._slots.load(reply, location)
                return
            except Exception as error:
                self._slots.mark_silent(location)
                self._failure = str(as_store_error(error))
            except BaseException:  # the caller was cancelled
                self._slots.is_stale = True
                raise

    async def _watch(self, location: Location, reply: Awaitable[Any], began: float, deadline: float) -> Any:
        """Return the reply of a server. If the server is silent, another server may have its slots."""
        try:
            return await reply
        except ResponseError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            half = (began + deadline) / 2  # a call that is cancelled earlier belongs to a client that went away
            if isinstance(error, Exception) or self._transport.time() > half:
                self._slots.mark_silent(location)
            raise

    def _pool(self, location: Location) -> ConnectionPool:
        pool = self._pools.get(location)
        if pool is None:  # another thread may have opened one
            pool = self._pools.setdefault(location, self._transport.pool(partial(self._connect, location)))
        return pool

    async def _connect(self, location: Location, deadline: float) -> Any:
        try:
            return await self._transport.connect(self._address, *location, deadline)
        except Exception as error:
            raise NotRunError(str(as_store_error(error))) from error


class Call:
    """A message on its way: the server that it goes to next, or its reply, which may be an error."""

    __slots__ = ("commands", "failure", "location", "message", "reply", "slot")

    def __init__(self, message: Message, slots: SlotMap) -> None:
        self.message = message
        slot = message.slot
        self.slot = slot = slot_of(message.keys[0]) if slot is None else slot
        self.commands: Sequence[Command] = (message.by_hash,)
        self.reply: Any = None
        self.failure: Exception | None = None
        """Why the server of the slot cannot be reached."""
        if (owner := slots.owners[slot]) is None:
            slots.is_stale = True
            self.reply = NotRunError(f"Redis: no known server of the cluster has slot {self.slot}")
        else:
            self.location = owner

    def redirect(self, reply: ResponseError, slots: SlotMap) -> None:
        """Go on to the server that an error reply names, or keep it. A server that lacks the script gets the script."""
        code = error_code(reply)
        if code == "NOSCRIPT":
            self.commands = (*self.commands[:-1], self.message.by_text)
        elif code in ("MOVED", "ASK"):
            self.location = slots.redirect(reply, self.location, self.slot)
            self.commands = (*((_ASKING,) if code == "ASK" else ()), self.commands[-1])
        else:
            self.reply = reply
            if code in _UNWELL:
                slots.mark_silent(self.location)

    def go_around(self, failure: Exception, other: Location | None) -> None:
        """Go on to another server, once."""
        if other is None or self.failure is not None:
            self.reply = failure
        else:
            self.commands, self.location, self.failure = self.commands[-1:], other, failure


def fail(calls: Sequence[Call], error: Exception) -> None:
    for each in calls:
        each.reply = error


def slot_of(name: bytes) -> int:
    """Return the slot of a key, or of the text in its first braces.

    >>> slot_of(b"123456789") == 0x31C3, slot_of(b"{shop}:a") == slot_of(b"shop")
    (True, True)
    """
    _, _, rest = name.partition(b"{")
    inside, closed, _ = rest.partition(b"}")
    return crc_hqx(inside if inside and closed else name, 0) % SLOTS
