"""Blocking and asyncio access to a store behind the same methods, so that each test of a suite runs through both."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..algorithms.limit import Limit
from ..clock import SECOND
from ..decision import Decision, Hit
from ..stores import Store

NOW = 1_767_268_820 * SECOND + 500_000
CLIENT = "ip=192.0.2.7"
_THREADS = 8


class StoreHandle:
    """Calls the blocking methods."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method of the store, such as ``apply``."""
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.store, method)(*arguments)

    def close_store(self) -> None:
        self._call("close")

    def close(self) -> None:
        self.close_store()

    def hit(self, limit: Limit, now: int | None = NOW, cost: int = 1, client: str = CLIENT) -> Decision:
        decisions: list[Decision] = self.apply([Hit(limit, limit.prefix + client, cost)], now)
        return decisions[0]

    def peek(self, limit: Limit, now: int | None = NOW, cost: int = 0) -> Decision:
        """Return the decision about a hit without consuming anything."""
        decisions: list[Decision] = self.apply([Hit(limit, limit.prefix + CLIENT, cost)], now, False)
        return decisions[0]

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Apply all requests at the same time, from several threads."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda hits: self.store.apply(hits, now), requests))


class AsyncStoreHandle(StoreHandle):
    """Calls the async methods on an event loop of its own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._runner = asyncio.Runner()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._runner.run(getattr(self.store, f"a{method}")(*arguments))

    def close(self) -> None:
        super().close()
        self._runner.close()

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Apply all requests at the same time, as tasks of one event loop."""
        return self._runner.run(self._gather(requests, now))

    async def _gather(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Raise the first error only after all tasks have ended, so that the store can be closed."""
        tasks = [asyncio.ensure_future(self.store.aapply(hits, now)) for hits in requests]
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks]
