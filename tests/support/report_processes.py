"""Processes with ``consistency = "reported"`` in one test: each reports when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.receipt import Correction
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7", "path": "/"}
both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


class Process(Store):
    """One process: a limiter with its own way to a store that all share."""

    def __init__(self, shared: SharedStore, clock: ManualClock, *rules: Rule, cache: int = 0, **options: Any) -> None:
        self.shared, self.down, self.mute = shared, False, False
        self.calls: list[str] = []
        settings = Settings(rejection_cache=cache, fleet_size=1, **options)  # no announcements
        self.limiter = Limiter(rules, self, clock, settings)

    def report(self) -> None:
        """The work of the thread, once."""
        link: Any = self.limiter._leases
        link._report_due(link._reports)

    def hit(self, cost: int | None = None, is_async: bool = False, **features: str) -> Verdict:
        features = {**WHO, **features}
        return asyncio.run(self.limiter.ahit(features, cost)) if is_async else self.limiter.hit(features, cost)

    def rest(self, **features: str) -> list[int]:
        """The rest in the store."""
        found = self.limiter.peek({**WHO, **features}, cost=0).decisions
        self.calls.pop()
        return [decision.remaining for decision in found]

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        if self.down:
            raise StoreError("it does not answer")
        result = getattr(self.shared, name)(*arguments)
        if self.mute:
            raise StoreError("it is not heard")
        return result

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._call("apply", hits, now, consume)  # type: ignore[no-any-return]

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._call("correct", changes, now)  # type: ignore[no-any-return]

    def forget(self, keys: Iterable[str]) -> None:
        self._call("forget", keys)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        await asyncio.sleep(0)
        return self.apply(hits, now, consume)


def reported(limits: str = "1000/minute", algorithm: str = "fixed-window", **options: Any) -> Rule:
    return Rule(name="api", limits=limits, algorithm=algorithm, consistency="reported", **options)


def setup(*rules: Rule, processes: int = 1, **options: Any) -> tuple[ManualClock, list[Process]]:
    clock, shared = ManualClock(1_000_020.0), SharedStore()
    return clock, [Process(shared, clock, *(rules or (reported(),)), **options) for _ in range(processes)]


def fail_call(*_: Any) -> Any:
    raise StoreError("it does not answer")


ENDPOINT = Rule(name="endpoint", limits="6/minute", key="path", algorithm="fixed-window")
ALL = Rule(name="all", limits="1000/minute", key=[], lease="5%", algorithm="fixed-window")
