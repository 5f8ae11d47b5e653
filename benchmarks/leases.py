"""Hits that do not reach the server, by leases and by cached rejections: ``python -m benchmarks leases``

The memory store is the lowest cost of a decision, and a round trip to Redis is the cost that is saved.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable

import redis

from benchmarks.redis_store import server
from benchmarks.timing import in_turns, progress, ratio, table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, open_store

ROUNDS = 15
PER_LEASE = (10, 100, 1_000)
HITS = 5_000
REJECTED = 500


def shared(port: int) -> Store:
    return open_store(f"redis://127.0.0.1:{port}/0", timeout_us=5_000_000)


def limiter_of(store: Store | str, per_lease: int) -> Limiter:
    """A hundred leases are the whole limit, so ``HITS`` hits do not use up a key."""
    return Limiter([Rule(name=f"leased-{per_lease}", limits=f"{per_lease * 100}/hour", lease="1%")], store)


def consuming(limiter: Limiter, per_lease: int) -> Callable[[], int]:
    """Hits on one key; each run takes a new key."""
    hits, keys = min(HITS, per_lease * 90), itertools.count()

    def run() -> int:
        features = {"ip": f"client-{next(keys)}"}
        for _ in range(hits):
            limiter.hit(features)
        return hits

    return run


def aconsuming(limiter: Limiter, per_lease: int, runner: asyncio.Runner) -> Callable[[], int]:
    hits, keys = min(HITS, per_lease * 90), itertools.count()

    async def run() -> int:
        features = {"ip": f"aclient-{next(keys)}"}
        for _ in range(hits):
            await limiter.ahit(features)
        return hits

    return lambda: runner.run(run())


def leased_row(name: str, candidates: list[Callable[[], int]], port: int) -> tuple[str, ...]:
    progress(f"leases: {name}")
    memory, leased, alone = in_turns(candidates, ROUNDS)
    with redis.Redis(port=port) as client:
        client.config_resetstat()
        hits = candidates[1]()
        commands = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    slower = f"{ratio(memory, leased):.2f}"
    return name, _us(memory), _us(leased), slower, f"{ratio(leased, alone):.1f}", f"{commands / hits * 1000:.0f}"


def leased_rows(port: int, runner: asyncio.Runner) -> list[tuple[str, ...]]:
    rows = []
    for per_lease in PER_LEASE:
        memory, leased = limiter_of("memory://", per_lease), limiter_of(shared(port), per_lease)
        alone = Limiter([Rule(name="alone", limits="1000000000/hour")], shared(port))
        trips = [consuming(memory, per_lease), consuming(leased, per_lease), consuming(alone, 2)]
        rows.append(leased_row(f"{per_lease:,} hits a lease, `hit`", trips, port))
        trips = [
            aconsuming(limiter, count, runner) for limiter, count in zip((memory, leased), [per_lease] * 2, strict=True)
        ]
        rows.append(leased_row(f"{per_lease:,} hits a lease, `ahit`", [*trips, aconsuming(alone, 2, runner)], port))
        for limiter in (leased, alone):
            runner.run(limiter.aclose())
    return rows


def rejected(limiter: Limiter) -> Callable[[], int]:
    """Hits on a key whose limit is used up."""
    features = {"ip": "192.0.2.7"}
    while limiter.hit(features):
        pass

    def run() -> int:
        for _ in range(REJECTED):
            limiter.hit(features)
        return REJECTED

    return run


def rejected_rows(port: int) -> list[tuple[str, ...]]:
    progress("leases: cached rejections")
    rules = [Rule(name="rejected", limits="1/day")]
    limiters = {
        "a round trip for each": Limiter(rules, shared(port), settings=Settings(rejection_cache=0)),
        "cached for 1 s": Limiter(rules, shared(port)),
        "memory store": Limiter(rules),
    }
    found = in_turns([rejected(limiter) for limiter in limiters.values()], ROUNDS)
    for limiter in limiters.values():
        limiter.close()
    return [(name, _us(rates), f"{ratio(rates, found[0]):.1f}") for name, rates in zip(limiters, found, strict=True)]


def _us(rates: list[float]) -> str:
    return f"{1e6 / statistics.median(rates):.1f}"


def report() -> str:
    with server() as port, asyncio.Runner() as runner:
        head = (
            "",
            "memory, us",
            "leased, us",
            "times the memory store",
            "as fast as a round trip for each",
            "round trips for 1,000",
        )
        leases = table("Leases on Redis, one key", leased_rows(port, runner), head)
        rejections = table("A rejected hit, Redis, blocking", rejected_rows(port), ("", "us", "times a round trip"))
    return f"{leases}\n{rejections}"


if __name__ == "__main__":
    print(report())
