"""A Memcached store whose keys change between its reads and its writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memcached_handles import address
from servers import Server

from ratelimit_mw.stores.memcached.store import LoopResources, MemcachedStore


class Meddling(MemcachedStore):
    """Call ``meddle`` before each write, for example to hit the same key from another store."""

    def __init__(self, server: Server, timeout_us: int, meddle: Callable[[], object]) -> None:
        super().__init__(address(server).removeprefix("memcached://"), timeout_us=timeout_us)
        self._meddle = meddle
        exchange = self._pool.exchange

        def meddled(payloads: Any, *rest: Any) -> None:
            self._look_at(payloads)
            exchange(payloads, *rest)

        self._pool.exchange = meddled  # type: ignore[method-assign]

    def _look_at(self, payloads: dict[Any, bytes]) -> None:
        if any(payload.startswith((b"cas ", b"add ", b"decr ")) for payload in payloads.values()):
            self._meddle()

    def _resources(self) -> LoopResources:
        resources = super()._resources()
        connections = resources.connections
        if "exchange" not in vars(connections):
            exchange = connections.exchange

            async def meddled(payloads: Any, *rest: Any) -> None:
                self._look_at(payloads)
                await exchange(payloads, *rest)

            connections.exchange = meddled  # type: ignore[method-assign]
        return resources
