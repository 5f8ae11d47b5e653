"""Calls to a cluster: blocking, and for an event loop. slots.py decides which server gets a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from ..address import Address
from ..message import Message
from .aconnection import AsyncRedisConnectionHolder, aconnect
from .connection import RedisConnectionPool, connect
from .errors import Command
from .run import arun, run
from .server import aevaluate, evaluate
from .slots import Hop, Location, Redirects, SlotMap, follow_redirects, refresh_map, slot_of

_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = (b"ASKING",)

Call = Callable[[Command], Any]
AsyncCall = Callable[[Command], Awaitable[Any]]


class Cluster:
    """For threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._slots = SlotMap(address.hosts)
        self._pools: dict[Location, RedisConnectionPool] = {}

    def ask(self, message: Message, deadline: float) -> Any:
        return self._send(slot_of(message.keys[0]), lambda call: evaluate(call, message), deadline)

    def probe_keys(self, slot: Callable[[str], int], deadline: float) -> list[str]:
        """A key on each primary."""
        self._refresh(deadline)
        return self._slots.samples(slot)

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    def _send(self, slot: int, send: Callable[[Call], Any], deadline: float) -> Any:
        self._refresh(deadline)
        return run(follow_redirects(self._slots, slot), lambda hop: send(self._call(hop, deadline)))

    def _refresh(self, deadline: float) -> None:
        if self._slots.claim_refresh():
            run(refresh_map(self._slots), lambda hop: self._call(hop, deadline)(_MAP))
            for location in set(self._pools).difference(self._slots.locations()):
                if pool := self._pools.pop(location, None):  # another thread may have taken it
                    pool.close()

    def _call(self, hop: Hop, deadline: float) -> Call:
        pool = self._pools.get(hop.location) or self._pools.setdefault(hop.location, self._open(hop.location))
        if hop.has_others:
            now = time.monotonic()
            deadline = now + (deadline - now) / 2
        if hop.asking:
            return lambda command: pool.call(_ASKING, command, deadline=deadline)
        return partial(pool.call, deadline=deadline)

    def _open(self, location: Location) -> RedisConnectionPool:
        return RedisConnectionPool(lambda deadline: connect(self._address, *location, deadline))


class AsyncCluster:
    """For one event loop. The caller bounds each call by ``timeout`` seconds."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._slots = SlotMap(address.hosts)
        self._holders: dict[Location, AsyncRedisConnectionHolder] = {}
        self._refreshing = asyncio.Lock()

    async def ask(self, message: Message) -> Any:
        return await self._send(slot_of(message.keys[0]), lambda call: aevaluate(call, message))

    async def probe_keys(self, slot: Callable[[str], int]) -> list[str]:
        """Async form of `Cluster.probe_keys`."""
        await self._refresh()
        return self._slots.samples(slot)

    async def aclose(self) -> None:
        for holder in self._holders.values():
            await holder.aclose()

    async def _send(self, slot: int, send: Callable[[AsyncCall], Awaitable[Any]]) -> Any:
        await self._refresh()
        return await self._follow(follow_redirects(self._slots, slot), send)

    async def _refresh(self) -> None:
        if not self._slots.claim_refresh():
            return
        version = self._slots.version
        async with self._refreshing:
            if self._slots.version == version:
                await self._follow(refresh_map(self._slots), lambda call: call(_MAP))
        for location in set(self._holders).difference(self._slots.locations()):
            if holder := self._holders.pop(location, None):
                holder.retire()

    async def _follow(self, hops: Redirects, send: Callable[[AsyncCall], Awaitable[Any]]) -> Any:
        timeout = self._timeout

        async def answer(hop: Hop) -> Any:
            nonlocal timeout
            if hop.has_others:
                timeout /= 2
            began = time.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    return await send(self._call(hop))
            except asyncio.CancelledError:
                if time.monotonic() - began > timeout / 2:  # else the client went away
                    self._slots.mark_silent(hop.location)
                raise

        return await arun(hops, answer)

    def _call(self, hop: Hop) -> AsyncCall:
        holder = self._holders.get(hop.location)
        if holder is None:
            open_connection = partial(aconnect, self._address, *hop.location, self._timeout)
            holder = self._holders[hop.location] = AsyncRedisConnectionHolder(open_connection)
        return partial(holder.call, _ASKING) if hop.asking else holder.call
