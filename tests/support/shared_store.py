"""A memory store that stands for a shared one: its calls are counted and can fail."""

import asyncio
from collections.abc import Iterable, Sequence

from ratelimit_mw.decision import Correction, Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import MemoryStore, Store


class SharedStore(Store):
    """A store with real states and decisions. ``down`` makes every call fail, and ``calls`` counts all calls.

    ``corrections`` counts those of ``correct``. With ``mute``, corrections are applied and their replies are lost.
    """

    def __init__(self) -> None:
        self.states = MemoryStore()
        self.calls = 0
        self.corrections = 0
        self.down = False
        self.mute = False

    def count_call(self) -> None:
        self.calls += 1
        if self.down:
            raise StoreError("it does not answer")

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self.count_call()
        return self.states.apply(hits, now, consume)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        self.count_call()
        self.corrections += 1
        times = self.states.correct(changes, now)
        if self.mute:
            raise StoreError("it is not heard")
        return times

    def forget(self, keys: Iterable[str]) -> None:
        self.count_call()
        self.states.forget(keys)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        await asyncio.sleep(0)
        return self.apply(hits, now, consume)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        await asyncio.sleep(0)
        return self.correct(changes, now)

    async def aforget(self, keys: Iterable[str]) -> None:
        await asyncio.sleep(0)
        self.forget(keys)


class RejectingStore(SharedStore):
    """A store that rejects each call, as Memcached does when the call loses all of its races, or has no room."""

    remaining = 0

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        decisions = super().apply(hits, now, consume=False)
        for decision in decisions:
            decision.allowed, decision.remaining, decision.retry_us = False, self.remaining, 1_000_000
        return decisions
