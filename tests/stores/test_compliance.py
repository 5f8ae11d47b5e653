"""The compliance suites that are shipped for users, on everything that is built in."""

from typing import Any

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import AlgorithmCompliance, StoreCompliance
from ratelimit_mw.testing.store_suite import COUNTS_REJECTED

MANY = ("1/second", "5/minute", "7/10s", "9999/day", "1000000000000/366d")
BURSTS = (*MANY, "100/minute burst 20", "3/7s burst 1", "1/day burst 1000000000000")

SUITES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "FixedWindow": ("fixed-window", MANY),
    "SlidingWindowLog": ("sliding-window-log", AlgorithmCompliance.quotas),
    "RejectionCountingLog": (COUNTS_REJECTED, AlgorithmCompliance.quotas),
    "SlidingWindowCounter": ("sliding-window-counter", MANY),
    "TieredWindow": ("tiered-window", MANY),
    "TieredWindowOfAFewBuckets": (
        {"name": "tiered-window", "precision": "250ms"},
        ("1/second", "7/10s", "100/hour"),
    ),
    "TokenBucket": ("token-bucket", BURSTS),
    "IntervalTokenBucket": ({"name": "token-bucket", "refill": "interval"}, BURSTS),
    "LeakyBucket": ("leaky-bucket", BURSTS),
    "LeakyBucketQueue": ({"name": "leaky-bucket", "mode": "queue"}, BURSTS),
    "Gcra": ("gcra", BURSTS),
}


def suite_of(name: str, spec: Any, quotas: tuple[str, ...]) -> type[AlgorithmCompliance]:
    def make(self: AlgorithmCompliance, quota: Quota) -> Algorithm:
        return build(spec, quota)

    values = {"make": make, "quotas": quotas, "counts_rejected": spec is COUNTS_REJECTED}
    return type(f"Test{name}", (AlgorithmCompliance,), values)


globals().update({f"Test{name}": suite_of(name, *values) for name, values in SUITES.items()})


class TestMemoryStore(StoreCompliance):
    def make_store(self) -> Store:
        return MemoryStore()
