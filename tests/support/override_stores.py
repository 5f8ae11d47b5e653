"""Limiters with overrides, and a store whose reads of them are counted and can fail."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from servers import wait_for
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

ACME = {"user": "acme"}
OTHER = {"user": "other"}
API = Rule(name="api", key=["user"], limits="100/minute")


def limiter_of(*rules: Rule, store: str | Store = "memory://", clock: Any = None, **settings: Any) -> Limiter:
    options = Settings(**{"reload_interval": "1ms", "store_timeout": "9s", **settings})
    return Limiter(rules or [API], store, clock or ManualClock(1_000_000.0), options)


def limits(limiter: Limiter, features: Any = ACME) -> list[str]:
    """Return the limits that a request of the client meets."""
    return [str(decision.source.quota) for decision in limiter.peek(features, cost=0).decisions]


def learns(limiter: Limiter, expected: list[str], features: Any = ACME) -> None:
    """Wait until requests have made the limiter follow the store."""
    wait_for(lambda: limits(limiter, features) == expected, f"the limits {expected}")


class Recording(SharedStore):
    """A shared store with records. ``reads`` counts how often they were read."""

    reads = starts = 0
    may_read = True

    def __init__(self) -> None:
        super().__init__()
        self.name = uuid4().hex  # threads of an earlier test may still log

    def start(self) -> None:
        """Take a while, so that other requests arrive meanwhile."""
        self.starts += 1
        self.count_call()
        threading.Event().wait(0.05)

    async def astart(self) -> None:
        await asyncio.sleep(0)
        self.start()

    def messages(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        """Return what was logged on this store, without its name."""
        found = (record.getMessage() for record in caplog.records)
        return [message.removeprefix(f"store {self.name} ") for message in found if self.name in message]

    def read_record(self, name: str) -> bytes | None:
        self.reads += 1
        self.count_call()
        if not self.may_read:
            raise StoreError("NOPERM")
        return self.states.read_record(name)

    async def aread_record(self, name: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.read_record(name)

    def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        self.count_call()
        return self.states.write_record(name, data, before)


def set_elsewhere(store: Recording, limit: str) -> None:
    """Change the override as another process does, which has a store object of its own."""
    other = Recording()
    other.states = store.states
    limiter_of(store=other).clients.override("api", ACME, limit)


def limits_of(verdict: Any) -> list[str]:
    return [str(decision.source.quota) for decision in verdict.decisions]


def hits_of_threads(limiter: Limiter) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(limiter.hit, [ACME] * 8))


def hits_of_a_loop(limiter: Limiter) -> list[Any]:
    async def hit() -> list[Any]:
        try:
            every = *(limiter.ahit(ACME) for _ in range(4)), *(limiter.apeek(ACME) for _ in range(4))
            return await asyncio.gather(*every)
        finally:
            await limiter.store.aclose()

    return asyncio.run(hit())
