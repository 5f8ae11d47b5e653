"""A Memcached store whose keys change between its reads and its writes."""

from collections.abc import Callable, Sequence
from typing import Any

from memcached_handles import PATIENT, address
from servers import Server

from ratelimit_mw.stores.drivers import Driver
from ratelimit_mw.stores.memcached.connections import KeyCommands, MemcachedConnections
from ratelimit_mw.stores.memcached.store import MemcachedStore


class Meddling(MemcachedStore):
    """Call ``meddle`` before each write, for example to hit the same key from another store.

    Args:
        server: The server.
        meddle: The function.
        races: After so many writes, the clock of each call is where no other attempt starts. A quarter of the time
            budget is left.
    """

    def __init__(self, server: Server, meddle: Callable[[], object], races: int = 1_000) -> None:
        self._meddle, self._races = meddle, races
        super().__init__(address(server), PATIENT)

    def _connect(self, driver: Driver) -> MemcachedConnections:
        connections = super()._connect(driver)
        exchange = connections.exchange

        async def meddled(requests: Sequence[KeyCommands], deadline: float) -> Any:
            if any(line.startswith((b"cas ", b"add ", b"decr ")) for each in requests for line in each.commands):
                self._meddle()
                self._races -= 1
                if self._races <= 0:
                    driver.clock.now = max(driver.clock.now, deadline - self._seconds / 4)
            return await exchange(requests, deadline)

        connections.exchange = meddled  # type: ignore[method-assign]
        return connections
