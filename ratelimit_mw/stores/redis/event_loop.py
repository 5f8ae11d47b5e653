"""What a store has on one event loop: connections, and the trips that its requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from ...errors import StoreError
from .address import Address
from .batch import Batcher
from .client.cluster import AsyncCluster
from .client.server import AsyncServer
from .client.slots import slot_of
from .message import Keys, Known, Message, Request
from .steps import Flow

__all__ = ["Side"]

T = TypeVar("T")

_SLOTS_KEPT: Final = 1_000


class Side:
    """Belongs to the loop that runs when it is made."""

    def __init__(self, address: Address, timeout: float, known: Known, name: Keys) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = (AsyncCluster if address.cluster else AsyncServer)(address, timeout)
        self._message: Callable[[], Message] = lambda: Message(known, name)
        self._name = name
        self._trips = Batcher(self.server.ask, self._message)
        self._trips_by_slot: dict[int, Batcher] | None = {} if address.cluster else None

    def ask(self, request: Request, due: float) -> Awaitable[Any]:
        """The answer to come; ``StoreError`` when it does not by ``due``, in the loop's time."""
        trips = self._trips if self._trips_by_slot is None else self._to_slot(request, self._trips_by_slot)
        return trips.join(request, due)

    def _to_slot(self, request: Request, known: dict[int, Batcher]) -> Batcher:
        """The keys of one call are in one slot."""
        slot = slot_of(self._name(request.key))
        if slot not in known:
            if len(known) >= _SLOTS_KEPT:
                for idle in [each for each, trips in known.items() if trips.idle]:
                    del known[idle]
            known[slot] = Batcher(self.server.ask, self._message)
        return known[slot]

    async def carry_out(self, flow: Flow[T], due: float) -> T:
        try:
            request = next(flow)
            while True:
                try:
                    answer = await self.ask(request, due)
                except StoreError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)
