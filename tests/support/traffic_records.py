"""A log of requests with a skewed distribution of clients, and its counts by brute force."""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import pytest

from ratelimit_mw.traffic import TrafficLog, counts, redis, sqlite
from ratelimit_mw.traffic import log as traffic_log

NOW = 1_767_268_820


def limit_to(patch: pytest.MonkeyPatch, *, clients: int = 1_000, events: int = 10_000) -> None:
    """Give the buckets of logs room for few events, and for twice as many clients of an event."""
    for module in (counts, traffic_log):
        patch.setattr(module, "MAX_CLIENTS", clients)
    for module in (counts, redis, sqlite):
        patch.setattr(module, "MAX_EVENTS", events)


class Record(NamedTuple):
    """The arguments of one record."""

    event: str
    client: str
    number: int
    at: float


def records(count: int, longest: float, seed: int = 1) -> list[Record]:
    """Return records up to ``longest`` seconds back, most of them recent, out of order."""
    chance = random.Random(seed)
    return [
        Record(
            chance.choice(("search", "login é", "")) or "api {a}:b",
            f"192.0.2.{int(chance.paretovariate(0.7)) % 256}",
            chance.choice((1, 1, 1, 7)),
            NOW - longest ** chance.random() + chance.choice((0, 0.25)),
        )
        for _ in range(count)
    ]


def record_all(log: TrafficLog, found: list[Record]) -> None:
    for each in found:
        log.record(each.event, each.client, each.number, each.at)


class BruteForce:
    """Counts the records of an event, or of one client of it."""

    def __init__(self, found: list[Record], event: str, client: str | None = None) -> None:
        own = (each for each in found if each.event == event and client in (None, each.client))
        self._records = sorted(own, key=lambda each: each.at)
        self._times = [each.at for each in self._records]
        self._sums = [0, *accumulate(each.number for each in self._records)]

    def total(self, start: float, end: float) -> int:
        """Count from ``start`` up to ``end``."""
        return self._sums[bisect_left(self._times, end)] - self._sums[bisect_left(self._times, start)]

    def clients(self, start: float, end: float) -> list[tuple[str, int]]:
        """Return the counts of clients, the highest first."""
        counts = Counter[str]()
        for each in self._records[bisect_left(self._times, start) : bisect_left(self._times, end)]:
            counts[each.client] += each.number
        return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def ranges(count: int, longest: float, seed: int = 2) -> Iterator[tuple[float, float]]:
    """Yield ranges of all lengths that end now or before."""
    chance = random.Random(seed)
    for _ in range(count):
        start = NOW - longest ** chance.random()
        yield start, min(NOW, start + longest ** chance.random())
