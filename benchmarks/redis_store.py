"""Compare the Redis store with ``limits`` on one server, in turns: ``python -m benchmarks redis``

A decision has the full result: allowed, remaining, reset, retry. ``limits`` returns that with ``hit`` and then
``get_window_stats``; ``hit`` alone returns yes or no. The plain script is an ``INCRBY`` by ``EVALSHA``, over redis-py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio
from limits import parse, strategies
from limits.aio import strategies as aio_strategies
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.errors import ConfigurationError
from limits.storage import RedisStorage

from benchmarks.loops import CLIENTS, SPANS, gathered, repeated
from benchmarks.servers import Nodes, redis_nodes
from benchmarks.timing import in_turns, median, progress, ratio, table, timed
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store

ROUNDS = 21
ALGORITHMS = {"fixed-window": "FixedWindow", "sliding-window-counter": "SlidingWindowCounter"}
LIMITS = ("1000000000/minute", "2000000000/hour", "3000000000/day")
PLAIN = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
NAMES = [f"192.0.2.{i}" for i in range(CLIENTS)]
FEATURES = [{"ip": name} for name in NAMES]
HEAD = (
    "",
    "decisions per second",
    "decisions per command",
    "CPU of the client, µs",
    "CPU of the server, µs",
    "CPU of both, of `limits`, full",
    "of `limits`, `hit`",
    "of a plain script",
)

Call = Callable[[int], Any]
AsyncCall = Callable[[int], Awaitable[Any]]


def open_limiter(port: int, algorithm: str, limits: int = 1) -> Limiter:
    # The time budget is not what is measured, and a machine under load would break it.
    store = open_store(f"redis://127.0.0.1:{port}/0", timeout_us=5_000_000)
    return Limiter([Rule(name=f"api-{limits}", limits=list(LIMITS[:limits]), algorithm=algorithm)], store=store)


def compared(name: str, runs: list[Callable[[], int]], nodes: Nodes) -> tuple[str, ...]:
    """One row: this package, and its processor time compared with each of the others."""
    progress(f"redis: {name}")
    own, *others = in_turns([timed(run, nodes.counters) for run in runs], ROUNDS)
    rate, cpu, server_cpu, commands = median(own)
    ratios = [f"{ratio(own, theirs, 'whole_cpu'):.2f}" for theirs in others]
    return name, f"{rate:,.0f}", f"{1 / commands:.0f}", f"{cpu:.0f}", f"{server_cpu:.0f}", *ratios


# -- blocking ----------------------------------------------------------------------------------------------------


def sync_row(nodes: Nodes, algorithm: str, limits: int) -> tuple[str, ...]:
    port = nodes.port
    limiter = open_limiter(port, algorithm, limits)
    theirs = getattr(strategies, f"{ALGORITHMS[algorithm]}RateLimiter")(RedisStorage(f"redis://127.0.0.1:{port}"))
    items = [parse(limit) for limit in LIMITS[:limits]]
    client = redis.Redis(port=port)
    sha = client.script_load(PLAIN)

    def in_full(i: int) -> None:
        for item in items:
            theirs.hit(item, NAMES[i])
            theirs.get_window_stats(item, NAMES[i])

    calls: list[Call] = [
        lambda i: limiter.hit(FEATURES[i]),
        in_full,
        lambda i: [theirs.hit(item, NAMES[i]) for item in items],
        lambda i: client.evalsha(sha, 1, NAMES[i], 1),
    ]
    name = f"{algorithm}, {limits} limit{'s' * (limits > 1)}"
    row = compared(name, [repeated(call) for call in calls], nodes)
    limiter.close()
    return row


# -- on an event loop --------------------------------------------------------------------------------------------


class Peers:
    """The clients that ``limits`` can use on an event loop; the fastest is the one to compare with."""

    def __init__(self, runner: asyncio.Runner, port: int) -> None:
        address = f"async+redis://127.0.0.1:{port}"
        pool = redis.asyncio.BlockingConnectionPool.from_url(f"redis://127.0.0.1:{port}", max_connections=16)
        self._storages = {
            "redis-py": AsyncRedisStorage(address, implementation="redispy", max_connections=1_000),
            "redis-py, 16 connections": AsyncRedisStorage(address, implementation="redispy", connection_pool=pool),
        }
        self._held = asyncio.Event()
        try:
            self._storages["coredis"] = runner.run(self._coredis(address))
        except (ImportError, ConfigurationError):
            progress("redis: limits without coredis, which is not installed: pip install --group bench")

    async def _coredis(self, address: str) -> AsyncRedisStorage:
        """Its client works within a block of its own, which a task holds open."""
        storage, entered = AsyncRedisStorage(address, implementation="coredis"), asyncio.Event()

        async def hold() -> None:
            async with storage.bridge.get_connection():
                entered.set()
                await self._held.wait()

        self._holder = asyncio.create_task(hold())
        await entered.wait()
        return storage

    def fastest(self, runner: asyncio.Runner, concurrent: int) -> tuple[str, AsyncRedisStorage]:
        calls = [_hit(storage, "sliding-window-counter") for storage in self._storages.values()]
        turns = in_turns([timed(gathered(runner, call, concurrent)) for call in calls], 7)
        medians = dict(zip(self._storages, map(median, turns), strict=True))
        best = max(medians, key=medians.__getitem__)
        return best, self._storages[best]


def _hit(storage: AsyncRedisStorage, algorithm: str, in_full: bool = False) -> AsyncCall:
    theirs, item = getattr(aio_strategies, f"{ALGORITHMS[algorithm]}RateLimiter")(storage), parse(LIMITS[0])

    async def full(i: int) -> None:
        await theirs.hit(item, NAMES[i])
        await theirs.get_window_stats(item, NAMES[i])

    return full if in_full else lambda i: theirs.hit(item, NAMES[i])


def async_rows(nodes: Nodes, runner: asyncio.Runner) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows, and for each number at a time the client that ``limits`` is fastest with."""
    peers = Peers(runner, nodes.port)
    rows, chosen = [], []
    for concurrent in SPANS:
        progress(f"redis: the best client for limits, {concurrent} at a time")
        name, storage = peers.fastest(runner, concurrent)
        chosen.append(f"{name} at {concurrent}")
        rows += [async_row(nodes, runner, algorithm, concurrent, storage) for algorithm in ALGORITHMS]
    return rows, chosen


def async_row(
    nodes: Nodes, runner: asyncio.Runner, algorithm: str, concurrent: int, storage: AsyncRedisStorage
) -> tuple[str, ...]:
    port = nodes.port
    limiter = open_limiter(port, algorithm)
    client = redis.asyncio.Redis(port=port, max_connections=1_000)
    sha = runner.run(client.script_load(PLAIN))
    calls: list[AsyncCall] = [
        lambda i: limiter.ahit(FEATURES[i]),
        _hit(storage, algorithm, in_full=True),
        _hit(storage, algorithm),
        lambda i: client.evalsha(sha, 1, NAMES[i], 1),
    ]
    candidates = [gathered(runner, call, concurrent) for call in calls]
    row = compared(f"{algorithm}, {concurrent} at a time", candidates, nodes)
    runner.run(limiter.aclose())
    runner.run(client.aclose())
    return row


def report() -> str:
    with redis_nodes() as nodes:
        blocking = [sync_row(nodes, algorithm, limits) for limits in (1, 3) for algorithm in ALGORITHMS]
        with asyncio.Runner() as runner:
            rows, chosen = async_rows(nodes, runner)
    tables = [
        table("Redis, blocking, one thread", blocking, HEAD),
        table("Redis, asyncio, one limit: the next request when one ends", rows, HEAD),
        f"`limits` with {', '.join(chosen)}.\n",
    ]
    return "\n".join(tables)
