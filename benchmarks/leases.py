"""Hits that do not reach the server, by leases and by cached rejections: ``python -m benchmarks leases``

The memory store is the lowest cost of a decision, and a round trip to Redis is the cost that is saved.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from benchmarks.loops import gathered
from benchmarks.servers import Nodes, redis_nodes
from benchmarks.timing import Turn, duration, in_turns, median, progress, ratio, table, timed
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, open_store

ROUNDS = 15
PER_LEASE = (10, 100, 1_000)
HITS = 5_000
REJECTED = 500
LEASED_HEAD = (
    "",
    "CPU in memory, µs",
    "CPU leased, µs",
    "ratio",
    "speed, of a round trip for each",
    "round trips for 1,000",
)
CONSISTENCIES = ("exact", "leased")
CONSISTENCY_HEAD = (
    "",
    "commands for 1,000",
    "CPU of the client, µs",
    "of exact",
    "CPU of the servers, µs",
    "of exact",
)
AT_A_TIME = 64
SECONDS = 1.0
CLIENTS = [{"ip": f"192.0.2.{i}", "user": f"user-{i}", "tenant": f"tenant-{i}"} for i in range(AT_A_TIME)]
CASES = {
    "one limit": (("ip", True),),
    "three limits": (("ip", True), ("user", True), ("tenant", True)),
    "three limits, one of them exact": (("ip", True), ("user", True), ("tenant", False)),
}
"""The key of each limit, and whether it has the consistency of the row."""
REJECTED_HEAD = ("", "CPU of the client, µs", "CPU of the server, µs", "speed, of a round trip")


def shared(nodes: Nodes) -> Store:
    return open_store(nodes.url, timeout_us=5_000_000)


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


def leased_row(name: str, candidates: list[Callable[[], int]], nodes: Nodes) -> tuple[str, ...]:
    progress(f"leases: {name}")
    memory, leased, alone = in_turns([timed(run, nodes.counters) for run in candidates], ROUNDS)
    ratios = f"{ratio(leased, memory, 'cpu'):.2f}", f"{ratio(leased, alone):.1f}"
    return name, _us(memory), _us(leased), *ratios, f"{median(leased).commands * 1000:.0f}"


def leased_rows(nodes: Nodes, runner: asyncio.Runner) -> list[tuple[str, ...]]:
    rows = []
    for per_lease in PER_LEASE:
        memory, leased = limiter_of("memory://", per_lease), limiter_of(shared(nodes), per_lease)
        alone = Limiter([Rule(name="alone", limits="1000000000/hour")], shared(nodes))
        trips = [consuming(memory, per_lease), consuming(leased, per_lease), consuming(alone, 2)]
        rows.append(leased_row(f"{per_lease:,} hits a lease, `hit`", trips, nodes))
        trips = [
            aconsuming(limiter, count, runner) for limiter, count in zip((memory, leased), [per_lease] * 2, strict=True)
        ]
        rows.append(leased_row(f"{per_lease:,} hits a lease, `ahit`", [*trips, aconsuming(alone, 2, runner)], nodes))
        for limiter in (leased, alone):
            runner.run(limiter.aclose())
    return rows


def consistent(consistency: str, keys: tuple[tuple[str, bool], ...], store: Store) -> Limiter:
    """Leases of 200 hits. The limits are not used up."""
    options = {"exact": {}, "leased": {"lease": "1%"}}[consistency]
    rules = [
        Rule(name=f"{consistency}-{key}", key=key, limits="20000/hour", **(options if is_own else {}))  # type: ignore[arg-type]
        for key, is_own in keys
    ]
    return Limiter(rules, store, settings=Settings(fleet_size=1))


def consistency_rows(runner: asyncio.Runner) -> list[tuple[str, ...]]:
    rows = []
    for place, primaries in (("one server", 1), ("Cluster of three", 3)):
        for name, keys in CASES.items():
            progress(f"leases: {name}, {place}")
            with redis_nodes(primaries) as nodes:
                limiters = [consistent(each, keys, shared(nodes)) for each in CONSISTENCIES]
                calls = [lambda i, limiter=limiter: limiter.ahit(CLIENTS[i]) for limiter in limiters]
                turns = [timed(gathered(runner, call, AT_A_TIME, duration(SECONDS)), nodes.counters) for call in calls]
                found = in_turns(turns, 6)
                for limiter in limiters:
                    runner.run(limiter.aclose())
            for consistency, own in zip(CONSISTENCIES, found, strict=True):
                one = median(own)
                rows.append(
                    (
                        f"{name}, {place}: {consistency}",
                        f"{one.commands * 1000:.0f}",
                        f"{one.cpu:.1f}",
                        f"{ratio(own, found[0], 'cpu'):.2f}",
                        f"{one.server_cpu:.1f}",
                        f"{ratio(own, found[0], 'server_cpu'):.2f}",
                    )
                )
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


def rejected_rows(nodes: Nodes) -> list[tuple[str, ...]]:
    progress("leases: cached rejections")
    rules = [Rule(name="rejected", limits="1/day")]
    limiters = {
        "a round trip for each": Limiter(rules, shared(nodes), settings=Settings(rejection_cache=0)),
        "cached for 1 s": Limiter(rules, shared(nodes)),
        "memory store": Limiter(rules),
    }
    found = in_turns([timed(rejected(limiter), nodes.counters) for limiter in limiters.values()], ROUNDS)
    for limiter in limiters.values():
        limiter.close()
    return [
        (name, _us(turns), f"{median(turns).server_cpu:.1f}", f"{ratio(turns, found[0]):.1f}")
        for name, turns in zip(limiters, found, strict=True)
    ]


def _us(turns: list[Turn]) -> str:
    return f"{median(turns).cpu:.1f}"


def report() -> str:
    with redis_nodes() as nodes, asyncio.Runner() as runner:
        leases = table("Leases on Redis, one key", leased_rows(nodes, runner), LEASED_HEAD)
        rejections = table("A rejected hit, Redis, blocking", rejected_rows(nodes), REJECTED_HEAD)
        title = f"Exact and leased, asyncio, {AT_A_TIME} clients at a time"
        kinds = table(title, consistency_rows(runner), CONSISTENCY_HEAD)
    return f"{leases}\n{rejections}\n{kinds}"
