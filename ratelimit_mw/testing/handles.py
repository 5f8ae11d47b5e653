"""A store through its blocking methods, and through its awaitable ones: two handles with one face, for the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..decision import Correction, Decision, Hit
from ..stores import Store

__all__ = ["AsyncHandle", "Handle"]

_THREADS = 8


class Handle:
    """The blocking methods."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self.store.apply(hits, now, consume)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self.store.correct(changes, now)

    def forget(self, keys: Iterable[str]) -> None:
        self.store.forget(keys)

    def ping(self) -> None:
        self.store.ping()

    def close_store(self) -> None:
        self.store.close()

    def close(self) -> None:
        """Close the store, and what the handle itself needs."""
        self.close_store()

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """All requests at the same time, from several threads."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda hits: self.store.apply(hits, now), requests))


class AsyncHandle(Handle):
    """The awaitable methods, on an event loop of their own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._runner = asyncio.Runner()

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._runner.run(self.store.aapply(hits, now, consume))

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._runner.run(self.store.acorrect(changes, now))

    def forget(self, keys: Iterable[str]) -> None:
        self._runner.run(self.store.aforget(keys))

    def ping(self) -> None:
        self._runner.run(self.store.aping())

    def close_store(self) -> None:
        self._runner.run(self.store.aclose())

    def close(self) -> None:
        self.close_store()
        self._runner.close()

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """All requests at the same time, as tasks of one event loop."""
        return self._runner.run(self._gather(requests, now))

    async def _gather(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """All answers; an error once none is on its way any more, so that the store can be closed."""
        tasks = [asyncio.ensure_future(self.store.aapply(hits, now)) for hits in requests]
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks]
