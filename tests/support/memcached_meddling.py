"""A Memcached store whose keys change between its reads and its writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memcached_handles import address
from servers import Server

from ratelimit_mw.stores.memcached.client.connections import MemcachedConnections
from ratelimit_mw.stores.memcached.client.protocol import KeyCommands
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.stores.ways import Way


class Meddling(MemcachedStore):
    """Call ``meddle`` before each write, for example to hit the same key from another store."""

    def __init__(self, server: Server, timeout_us: int, meddle: Callable[[], object]) -> None:
        self._meddle = meddle
        super().__init__(address(server).removeprefix("memcached://"), timeout_us=timeout_us)

    def _connect(self, way: Way) -> MemcachedConnections:
        connections = super()._connect(way)
        exchange = connections.exchange

        async def meddled(requests: Sequence[KeyCommands], due: float) -> Any:
            self._look_at(requests)
            return await exchange(requests, due)

        connections.exchange = meddled  # type: ignore[method-assign]
        return connections

    def _look_at(self, requests: Sequence[KeyCommands]) -> None:
        if any(line.startswith((b"cas ", b"add ", b"decr ")) for request in requests for line in request.commands):
            self._meddle()
