"""Calls to a cluster: the slots of keys, the map of which server has which slot, and the redirects.

Blocking calls and event loops share the code. A call is sent again only to the server that a redirect names, because
the redirecting server has not run it.
"""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from redis import ResponseError

from ....errors import StoreError
from ..address import Address
from ..message import Message
from .errors import Command, error_code
from .server import ConnectionPool, Target, Transport, call

Location = tuple[str, int]
"""Host and port of a server."""

_SLOTS: Final = 16384
_SAMPLES: Final = 1024
_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = (b"ASKING",)
_MOST_HOPS: Final = 6
_ENDLESS: Final = "Redis: the servers of the cluster redirect to each other"


class Cluster(Target):
    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._slots = SlotMap(address)
        self._pools: dict[Location, ConnectionPool] = {}
        self._refreshing = transport.lock()

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
        return [StoreError(_ENDLESS) if each.reply is None else each.reply for each in calls]

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
        slots = self._slots
        if slots.version and not slots.is_stale:
            return
        slots.is_stale, version = False, slots.version  # one of several calls reads the map, or all at the start
        async with self._refreshing:
            if slots.version == version:
                await self._read_map(deadline)
        for location in set(self._pools).difference(slots.locations()):
            if pool := self._pools.pop(location, None):  # another thread may have taken it
                pool.retire()

    async def _read_map(self, deadline: float) -> None:
        """Ask one server after another for the map. Without a reply, the old map stays in use."""
        failure: Exception | None = None
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
                failure = error
            except BaseException:  # the caller was cancelled
                self._slots.is_stale = True
                raise
        if failure is not None and not self._slots.version:
            raise failure

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
            pool = self._pools.setdefault(location, self._transport.open(self._address, *location))
        return pool


class Call:
    """A message on its way: the server that it goes to next, or its reply, which may be an error."""

    __slots__ = ("commands", "location", "message", "reply", "slot")

    def __init__(self, message: Message, slots: SlotMap) -> None:
        self.message = message
        slot = message.slot
        self.slot = slot = slot_of(message.keys[0]) if slot is None else slot
        self.commands: Sequence[Command] = (message.by_hash,)
        self.reply: Any = None
        if (owner := slots.owners[slot]) is None:
            slots.is_stale = True
            self.reply = StoreError(f"Redis: no known server of the cluster has slot {self.slot}")
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
            slots.is_stale = slots.is_stale or code == "CLUSTERDOWN"
            self.reply = reply


def fail(calls: Sequence[Call], error: Exception) -> None:
    for each in calls:
        each.reply = error


class SlotMap:
    """Which server has which slot, as far as it is known."""

    def __init__(self, address: Address) -> None:
        self._seeds = list(address.hosts)
        self._locate = address.locate
        self.owners: list[Location | None] = [None] * _SLOTS
        """The server of each slot."""
        self._primaries: list[Location] = []
        self._silent: set[Location] = set()
        self.is_stale = True
        self.version = 0
        """How often the map was read."""

    def locations(self) -> list[Location]:
        """Return the servers to ask for the map: those in it, then those of the URL; silent servers last."""
        return sorted(dict.fromkeys([*self._primaries, *self._seeds]), key=self._silent.__contains__)

    def load(self, reply: Iterable[Any], source: Location) -> None:
        """Take over a reply to CLUSTER SLOTS: first slot, last slot, primary (host, port, ...), replicas."""
        owners: list[Location | None] = [None] * _SLOTS
        primaries: dict[Location, None] = {}
        for first, last, (host, port, *_), *_ in reply:
            location = self._location(host.decode() if host else "", port, source)
            owners[first : last + 1] = [location] * (last + 1 - first)
            primaries[location] = None
        self.owners, self._primaries = owners, list(primaries)
        self.version += 1
        self._silent = self._silent.intersection(self.locations()) - {source}

    def mark_silent(self, location: Location) -> None:
        """Record that another server may have the slots of this one by now."""
        self._silent.add(location)
        self.is_stale = True

    def redirect(self, error: ResponseError, source: Location, slot: int) -> Location:
        """Return the server that a MOVED or ASK of ``source`` names."""
        host, _, port = str(error).rpartition(" ")[2].rpartition(":")
        location = self._location(host, port, source)
        if error_code(error) == "MOVED":
            self.owners[slot] = location
            self.is_stale = True  # other slots may have moved too
        return location

    def _location(self, host: str, port: int | str, source: Location) -> Location:
        """Return where to reach a server that ``source`` names. A server may have to leave out the host."""
        return self._locate(host if host and host != "?" else source[0], int(port))

    def samples(self, slot: Callable[[str], int]) -> list[str]:
        """Return a key ``ping0``, ``ping1``, ... for each primary that has a fair share of the slots."""
        keys: dict[Location | None, str] = {}
        for i in range(_SAMPLES):
            keys.setdefault(self.owners[slot(f"ping{i}")], f"ping{i}")
            if len(keys) == len(self._primaries):
                break
        return list(keys.values())


def slot_of(name: bytes) -> int:
    """Return the slot of a key, or of the text in its first braces.

    >>> slot_of(b"123456789") == 0x31C3, slot_of(b"{shop}:a") == slot_of(b"shop")
    (True, True)
    """
    _, _, rest = name.partition(b"{")
    inside, closed, _ = rest.partition(b"}")
    return crc_hqx(inside if inside and closed else name, 0) % _SLOTS
