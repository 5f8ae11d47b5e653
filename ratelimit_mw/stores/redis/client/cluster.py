"""Calls to a cluster: the slots of keys, the servers that have them, and the redirects.

Blocking calls and event loops share the code. A call is sent again only if no server has run it: after a redirect, and
after a failed connect. Replicas are asked for the map only.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from hiredis import pack_command
from redis import ResponseError

from ....clock import monotonic
from ...base import Facts
from ...wire import Channel
from ..address import Address
from ..call import Call, SharedCall
from .errors import NotRunError, as_store_error, error_code
from .facts import facts_of_server
from .server import Target
from .slot_map import SLOTS, Location, SlotMap
from .transport import Transport, call

Sent = Call | None
"""A message, or None for an ASKING before it."""
Calls = dict[Location | None, list[Sent]]

_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = pack_command((b"ASKING",))
_MOST_HOPS: Final = 6
_MAP_INTERVAL: Final = 0.1  # seconds from one read of the map to the next: a redirect corrects the map for its slot
_UNWELL: Final = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"}
"""Replies of a server that may have lost its slots to another one, and that may not know it."""
_UNKNOWN: Final = "Redis: no known server of the cluster has the slot of a key"
_ENDLESS: Final = (
    f"Redis: the servers of the cluster redirect to each other after {_MOST_HOPS} redirects."
    " Check remap, or wait until the cluster agrees"
)


class Cluster(Target):
    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._slots = SlotMap(address)
        self.owners: Sequence[Location | None] = self._slots.owners
        """The server of each slot, as far as it is known."""
        self._pools: dict[Location, Channel] = {}
        self._refreshing = transport.lock()
        self._next_read = 0.0
        self._failure = ""
        """The reason why there is no map yet."""

    async def ask(self, message: Call, deadline: float) -> None:
        await self.ask_each((message,), deadline)

    async def ask_each(self, messages: Sequence[Call], deadline: float) -> None:
        """Give each message its reply, or its error. All go out at once, those of one server together."""
        if self._slots.is_stale or not self._slots.version:
            await self._refresh(deadline)
        owners = self.owners
        calls: Calls = defaultdict(list)
        rerouted: set[Call] = set()
        for each in messages:
            calls[owners[each.slot]].append(each)
        for _ in range(_MOST_HOPS):
            if not (calls := await self._send(calls, rerouted, deadline)):
                return
        for left in calls.values():
            fail(left, NotRunError(_ENDLESS))

    async def _send(self, calls: Calls, rerouted: set[Call], deadline: float) -> Calls:
        """Send messages to their servers, then await all replies. Return the calls that are left.

        A server that fails fails its own messages only.
        """
        half = (self._transport.clock.now + deadline) / 2
        flights: list[Any] = []
        left: Calls = defaultdict(list)
        for location, messages in calls.items():
            if location is None:
                self._slots.is_stale = True
                fail(messages, NotRunError(_UNKNOWN))
                continue
            try:
                frames = [each.frame if each else _ASKING for each in messages]
                flight = await self._pool(location).send(b"".join(frames), len(frames), deadline)
                flights.append((location, messages, flight))
            except NotRunError as error:
                self._slots.mark_silent(location)
                self._go_around(messages, location, error, half, rerouted, left)
            except Exception as error:
                self._fail(messages, error, location)
        for location, messages, flight in flights:
            try:
                for message, reply in zip(messages, await flight, strict=True):
                    if message is None:
                        continue
                    if isinstance(reply, ResponseError):
                        self._redirect(message, reply, location, left)
                    else:
                        message.receive(reply)
            except Exception as error:
                self._fail(messages, error, location)
        return left

    def _redirect(self, message: Call, error: ResponseError, source: Location, left: Calls) -> None:
        """Call the server that an error reply names, or send the script."""
        code = error_code(error)
        again: Sequence[Sent] = (message,)
        if code == "NOSCRIPT":
            message.has_text = True
            source = self.owners[message.slot] or source  # which sends an ASK again
        elif code in ("MOVED", "ASK"):
            source = self._slots.redirect(error, source, message.slot)
            again = (message,) if code == "MOVED" else (None, message)
        elif code == "TRYAGAIN" and isinstance(message, SharedCall):
            again = message.items
        else:
            if code in _UNWELL:
                self._slots.mark_silent(source)
            message.fail(error)
            return
        left[source] += again

    def _go_around(
        self,
        messages: Sequence[Sent],
        location: Location,
        failure: Exception,
        half: float,
        rerouted: set[Call],
        left: Calls,
    ) -> None:
        """Send to another server, at most once. It redirects to the new owner of the slot.

        A server that is silent for half of the time leaves none for that.
        """
        other = None if self._transport.clock.now > half else self._slots.other_than(location)
        for message in messages:
            if message is None:
                continue
            if other is None or message in rerouted:
                message.fail(failure)
            else:
                rerouted.add(message)
                left[other].append(message)

    def _fail(self, messages: Sequence[Sent], error: Exception, location: Location) -> None:
        """Give messages the error of their server. If the server is silent, another server may have its slots."""
        if not isinstance(error, ResponseError):
            self._slots.mark_silent(location)
        fail(messages, error)

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        await self._refresh(deadline)
        return self._slots.samples(slot)

    def facts(self) -> Iterator[Facts]:
        cluster = Facts("cluster", "")
        for location in sorted(self._slots.locations()):
            is_replica = self._slots.version and location not in self._slots.primaries  # unknown without a map
            yield facts_of_server("replica" if is_replica else "redis", self._address, self._transport, location)
            if not cluster.values:
                cluster = facts_of_server("cluster", self._address, self._transport, location, b"CLUSTER", b"INFO")
        yield cluster

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
                pool.close()

    async def _read_map(self, deadline: float) -> None:
        """Ask one server after another for the map. Without a reply, the old map stays in use."""
        for location in self._slots.locations():
            now = self._transport.clock.now
            until = now + (deadline - now) / 2  # leaves time for another server
            try:
                self._slots.load(await call(self._pool(location), _MAP, until), location)
                return
            except Exception as error:
                self._slots.mark_silent(location)
                self._failure = str(as_store_error(error))
            except BaseException:  # the caller was cancelled
                self._slots.is_stale = True
                raise

    def _pool(self, location: Location) -> Channel:
        pool = self._pools.get(location)
        if pool is None:  # another thread may have opened one
            pool = self._pools.setdefault(location, self._transport.channel(partial(self._connect, location)))
        return pool

    async def _connect(self, location: Location, deadline: float) -> Any:
        try:
            return await self._transport.connect(self._address, *location, deadline)
        except Exception as error:
            raise NotRunError(str(as_store_error(error))) from error


def fail(messages: Sequence[Sent], error: Exception) -> None:
    for each in messages:
        if each is not None:
            each.fail(error)


def slot_of(name: bytes) -> int:
    """Return the slot of a key, or of the text in its first braces.

    >>> slot_of(b"123456789") == 0x31C3, slot_of(b"{shop}:a") == slot_of(b"shop")
    (True, True)
    """
    _, _, rest = name.partition(b"{")
    inside, closed, _ = rest.partition(b"}")
    return crc_hqx(inside if inside and closed else name, 0) % SLOTS
