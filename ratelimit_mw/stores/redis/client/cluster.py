"""A cluster of servers: blocking, and for an event loop. Calls go where slots.py says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, Final

from ..address import Address
from ..message import Message
from .aconnection import AsyncLines, aconnected
from .connection import Lines, connected
from .errors import Command
from .server import aevaluated, evaluated, pinging
from .slots import Journey, Leg, Place, Slots, by_slot, journey, learning, slot_of

__all__ = ["AsyncCluster", "Cluster"]

_MAP: Final = (b"CLUSTER", b"SLOTS")
_ASKING: Final = (b"ASKING",)


Call = Callable[[Command], Any]
AsyncCall = Callable[[Command], Awaitable[Any]]


class Cluster:
    """For threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._slots = Slots(address.hosts)
        self._lines: dict[Place, Lines] = {}

    def ask(self, message: Message, deadline: float) -> Any:
        return self._send(slot_of(message.keys[0]), lambda call: evaluated(call, message), deadline)

    def delete(self, names: Sequence[bytes], deadline: float) -> None:
        for slot, together in by_slot(names).items():
            command = (b"DEL", *together)
            self._send(slot, methodcaller("__call__", command), deadline)

    def ping(self, name: Callable[[int], bytes], deadline: float) -> None:
        self._learn(deadline)
        for key in self._slots.samples(name):
            self._send(slot_of(key), methodcaller("__call__", pinging(key)), deadline)

    def close(self) -> None:
        for lines in list(self._lines.values()):
            lines.close()

    def _send(self, slot: int, send: Callable[[Call], Any], deadline: float) -> Any:
        self._learn(deadline)
        return self._travel(journey(self._slots, slot), send, deadline)

    def _learn(self, deadline: float) -> None:
        if self._slots.takes_learning():
            self._travel(learning(self._slots), methodcaller("__call__", _MAP), deadline)
            for place in set(self._lines).difference(self._slots.places()):
                if lines := self._lines.pop(place, None):  # another thread may be faster
                    lines.close()

    def _travel(self, way: Journey, send: Callable[[Call], Any], deadline: float) -> Any:
        try:
            leg = next(way)
            while True:
                try:
                    reply = send(self._call(leg, deadline))
                except Exception as error:
                    leg = way.throw(error)
                else:
                    leg = way.send(reply)
        except StopIteration as arrived:
            return arrived.value
        finally:
            way.close()

    def _call(self, leg: Leg, deadline: float) -> Call:
        lines = self._lines.get(leg.place) or self._lines.setdefault(leg.place, self._lines_to(leg.place))
        if leg.tries:
            now = time.monotonic()
            deadline = now + (deadline - now) / 2  # another server may have to be asked
        if leg.asking:
            return lambda command: lines.call(_ASKING, command, deadline=deadline)
        return partial(lines.call, deadline=deadline)

    def _lines_to(self, place: Place) -> Lines:
        return Lines(lambda deadline: connected(self._address, *place, deadline))


class AsyncCluster:
    """For one event loop. The caller bounds its calls; ``timeout`` is what they are given."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._slots = Slots(address.hosts)
        self._lines: dict[Place, AsyncLines] = {}
        self._learning = asyncio.Lock()

    async def ask(self, message: Message) -> Any:
        return await self._send(slot_of(message.keys[0]), lambda call: aevaluated(call, message))

    async def delete(self, names: Sequence[bytes]) -> None:
        for slot, together in by_slot(names).items():
            command = (b"DEL", *together)
            await self._send(slot, methodcaller("__call__", command))

    async def ping(self, name: Callable[[int], bytes]) -> None:
        await self._learn()
        for key in self._slots.samples(name):
            await self._send(slot_of(key), methodcaller("__call__", pinging(key)))

    async def aclose(self) -> None:
        for lines in self._lines.values():
            await lines.aclose()

    async def _send(self, slot: int, send: Callable[[AsyncCall], Awaitable[Any]]) -> Any:
        await self._learn()
        return await self._travel(journey(self._slots, slot), send)

    async def _learn(self) -> None:
        if not self._slots.takes_learning():
            return
        version = self._slots.version
        async with self._learning:
            if self._slots.version == version:
                await self._travel(learning(self._slots), methodcaller("__call__", _MAP))
        for place in set(self._lines).difference(self._slots.places()):
            if lines := self._lines.pop(place, None):
                lines.retire()

    async def _travel(self, way: Journey, send: Callable[[AsyncCall], Awaitable[Any]]) -> Any:
        patience = self._timeout
        try:
            leg = next(way)
            while True:
                try:
                    if leg.tries:
                        patience /= 2  # another server may have to be asked
                    began = time.monotonic()
                    async with asyncio.timeout(patience):
                        reply = await send(self._call(leg))
                except asyncio.CancelledError:
                    if time.monotonic() - began > patience / 2:  # it is not the client who went away
                        self._slots.failed(leg.place)
                    raise
                except Exception as error:
                    leg = way.throw(error)
                else:
                    leg = way.send(reply)
        except StopIteration as arrived:
            return arrived.value
        finally:
            way.close()

    def _call(self, leg: Leg) -> AsyncCall:
        lines = self._lines.get(leg.place)
        if lines is None:
            lines = self._lines[leg.place] = AsyncLines(partial(aconnected, self._address, *leg.place, self._timeout))
        return partial(lines.call, _ASKING) if leg.asking else lines.call
