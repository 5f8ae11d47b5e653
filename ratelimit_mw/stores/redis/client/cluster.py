"""Calls to a cluster. Blocking calls and event loops share the code.

A call is sent again only to the server that a redirect names, because the redirecting server has not run it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from redis import ResponseError

from ....errors import StoreError
from ..address import Address
from ..message import Message
from .server import ConnectionPool, Target, Transport, evaluate
from .slots import Location, SlotMap, slot_of

_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = (b"ASKING",)
_MOST_HOPS: Final = 5


class Cluster(Target):
    """The servers of a cluster, each with its slots."""

    def __init__(self, address: Address, transport: Transport) -> None:
        self._address = address
        self._transport = transport
        self._slots = SlotMap(address.hosts)
        self._pools: dict[Location, ConnectionPool] = {}
        self._refreshing = transport.lock()

    async def ask(self, message: Message, deadline: float) -> Any:
        await self._refresh(deadline)
        slot = slot_of(message.keys[0])
        location, asking = self._slots.owner(slot), False
        for _ in range(_MOST_HOPS):
            call = self._pool(location).call
            reply = evaluate(partial(call, _ASKING) if asking else call, message, deadline)
            try:
                return await self._watch(location, reply, deadline)
            except ResponseError as error:
                location, asking = self._slots.redirect(error, location, slot)
        raise StoreError("Redis: the servers of the cluster redirect to each other")

    async def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        await self._refresh(deadline)
        return self._slots.samples(slot)

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    async def _refresh(self, deadline: float) -> None:
        slots = self._slots
        if not slots.claim_refresh():
            return
        version = slots.version
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
                async with self._transport.timeout_at(until):
                    reply = await self._watch(location, self._pool(location).call(_MAP, deadline=until), until)
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

    async def _watch(self, location: Location, reply: Awaitable[Any], deadline: float) -> Any:
        """The reply of a server. If the server is silent, another server may have its slots."""
        began = self._transport.time()
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
