"""A limiter on a memory store of a given size with a manual clock."""

from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

ALGORITHMS = ["fixed-window", "sliding-window-counter", "sliding-window-log", "tiered-window", "token-bucket", "gcra"]


def limiter(limits: Any = "3/minute", max_keys: int = 1_000_000, **rule: Any) -> Limiter:
    rule = {"name": "r", "key": ["user"], "limits": limits, **rule}
    return Limiter([Rule(**rule)], store=MemoryStore(max_keys), clock=ManualClock(1_000_000.0))


def clock_of(rate: Limiter) -> ManualClock:
    clock = rate.clocks.own
    assert isinstance(clock, ManualClock)
    return clock


def store_of(rate: Limiter) -> MemoryStore:
    assert isinstance(rate.store, MemoryStore)
    return rate.store


def hit(rate: Limiter, user: str, cost: int = 1) -> bool:
    return rate.hit({"user": user}, cost).allowed
