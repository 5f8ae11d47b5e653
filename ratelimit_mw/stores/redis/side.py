"""What a store has on one event loop: connections, and the trips that its requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ...errors import StoreError
from .address import Address
from .flows import Flow
from .message import Message, Request
from .servers import AsyncServer
from .trips import Trips

__all__ = ["Side"]

T = TypeVar("T")


class Side:
    """Belongs to the loop that runs when it is made."""

    def __init__(self, address: Address, timeout: float, message: Callable[[], Message]) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = AsyncServer(address, timeout)
        self._trips = Trips(self.server.ask, message)

    def ask(self, request: Request, due: float) -> asyncio.Future[Any]:
        """The answer to come; ``StoreError`` when it does not by ``due``, in the loop's time."""
        return self._trips.join(request, due)

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
