"""The part of a store that belongs to one event loop: its connections, and the batches that its requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from .batch import Batcher
from .client.slots import slot_of
from .message import Message, Operation, RedisKeys

_MOST_BATCHERS: Final = 1_000


class AsyncTarget(Protocol):
    """A server, a cluster or a client of the application, on one event loop."""

    def ask(self, message: Message) -> Awaitable[Any]: ...
    async def aclose(self) -> None: ...


class EventLoopState:
    """Belongs to the loop that runs when it is built."""

    ask: Callable[[Operation, float], Awaitable[Any]]
    """The result of an operation to come. Raises ``StoreError`` at the deadline, in the loop's time."""

    def __init__(self, target: AsyncTarget, new_message: Callable[[], Message], keys: RedisKeys | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.target = target
        self._new_message = new_message
        if keys is None:
            self.ask = Batcher(target.ask, new_message).join
        else:  # a cluster: the keys of one call must be in one slot
            self._keys = keys
            self._batchers: dict[int, Batcher] = {}
            self.ask = self._ask_slot

    def _ask_slot(self, operation: Operation, deadline: float) -> Awaitable[Any]:
        slot, batchers = slot_of(self._keys(operation.key)), self._batchers
        if slot not in batchers:
            if len(batchers) >= _MOST_BATCHERS:
                for idle in [each for each, batcher in batchers.items() if batcher.is_idle]:
                    del batchers[idle]
            batchers[slot] = Batcher(self.target.ask, self._new_message)
        return batchers[slot].join(operation, deadline)
