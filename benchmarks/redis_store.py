"""The Redis store beside ``limits``, on the same server in the same run, in turns: ``python -m benchmarks.redis_store``

Decisions a second, each of them the full answer: with ``limits`` that is ``hit`` alone, which tells less (neither what
is left nor when to come again). Needs the programs and libraries of ``make bench``, and redis-server.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from limits import parse, strategies
from limits.aio import strategies as aio_strategies
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.storage import RedisStorage

from benchmarks.timing import table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store

ROUNDS = 7
CONCURRENT = {1: 1_000, 64: 6_400, 256: 12_800}
ALGORITHMS = {"fixed-window": "FixedWindow", "sliding-window-counter": "SlidingWindowCounter"}
PLENTY = "1000000000/minute"
THREE = ("1000000000/minute", "2000000000/hour", "3000000000/day")
PLAIN = "return redis.call('INCRBY', KEYS[1], ARGV[1])"

Call = Callable[[int], Any]
AsyncCall = Callable[[int], Awaitable[Any]]


@contextmanager
def server() -> Iterator[int]:
    """A Redis of its own on a free port."""
    program = shutil.which("redis-server") or sys.exit("redis-server is not installed: apt-get install redis-server")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    quiet = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
    process = subprocess.Popen([program, "--port", str(port), *quiet], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        while not _answers(client):
            time.sleep(0.01)
        client.close()
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def ours(port: int, algorithm: str, limits: tuple[str, ...] = (PLENTY,)) -> Limiter:
    # The time budget is not what is measured, and a machine under load would break it.
    store = open_store(f"redis://127.0.0.1:{port}/0", timeout_us=5_000_000)
    return Limiter([Rule(name="api", limits=list(limits), algorithm=algorithm)], store=store)


FEATURES = [{"ip": f"192.0.2.{i}"} for i in range(256)]
NAMES = [f"192.0.2.{i}" for i in range(256)]


# -- blocking ----------------------------------------------------------------------------------------------------


def sync_calls(port: int) -> dict[str, tuple[Call, ...]]:
    """(ours, of limits, a plain EVALSHA) for each row."""
    storage = RedisStorage(f"redis://127.0.0.1:{port}")
    client = redis.Redis(port=port)
    sha = client.script_load(PLAIN)
    rows: dict[str, tuple[Call, ...]] = {}
    for algorithm, name in ALGORITHMS.items():
        limiter, theirs = ours(port, algorithm), getattr(strategies, f"{name}RateLimiter")(storage)
        item = parse(PLENTY)
        rows[f"{algorithm}, one limit"] = (
            lambda i, limiter=limiter: limiter.hit(FEATURES[i]),
            lambda i, theirs=theirs, item=item: theirs.hit(item, NAMES[i]),
            lambda i: client.evalsha(sha, 1, NAMES[i], 1),
        )
        limiter = ours(port, algorithm, THREE)
        items = [parse(limit) for limit in THREE]
        rows[f"{algorithm}, three limits"] = (
            lambda i, limiter=limiter: limiter.hit(FEATURES[i]),
            lambda i, theirs=theirs, items=items: [theirs.hit(item, NAMES[i]) for item in items],
            lambda i: client.evalsha(sha, 1, NAMES[i], 1),
        )
    return rows


def sync_rate(call: Call, calls: int = 1_000) -> float:
    start = time.perf_counter()
    for i in range(calls):
        call(i % 256)
    return calls / (time.perf_counter() - start)


# -- on an event loop --------------------------------------------------------------------------------------------


def async_calls(port: int, limiters: list[Limiter]) -> dict[str, tuple[AsyncCall, ...]]:
    address = f"async+redis://127.0.0.1:{port}"
    storage = AsyncRedisStorage(address, implementation="redispy", max_connections=1_000)
    client = redis.asyncio.Redis(port=port, max_connections=1_000)
    script = client.register_script(PLAIN)
    rows: dict[str, tuple[AsyncCall, ...]] = {}
    for algorithm, name in ALGORITHMS.items():
        limiter, theirs = ours(port, algorithm), getattr(aio_strategies, f"{name}RateLimiter")(storage)
        limiters.append(limiter)
        item = parse(PLENTY)
        rows[algorithm] = (
            lambda i, limiter=limiter: limiter.ahit(FEATURES[i]),
            lambda i, theirs=theirs, item=item: theirs.hit(item, NAMES[i]),
            lambda i: script([NAMES[i]], [1]),
        )
    return rows


async def async_rate(call: AsyncCall, concurrent: int) -> float:
    total = CONCURRENT[concurrent]

    async def worker(i: int) -> None:
        for _ in range(total // concurrent):
            await call(i)

    start = time.perf_counter()
    await asyncio.gather(*map(worker, range(concurrent)))
    return total / (time.perf_counter() - start)


async def async_rows(port: int) -> list[tuple[str, ...]]:
    limiters: list[Limiter] = []
    rows = []
    for algorithm, calls in async_calls(port, limiters).items():
        for concurrent in CONCURRENT:
            found: list[list[float]] = [[] for _ in calls]
            for _ in range(ROUNDS + 1):
                for rates, call in zip(found, calls, strict=True):
                    rates.append(await async_rate(call, concurrent))
            rows.append(row(f"{algorithm}, {concurrent} at a time", found))
    for limiter in limiters:
        await limiter.aclose()
    return rows


# -- both --------------------------------------------------------------------------------------------------------


def row(name: str, found: list[list[float]]) -> tuple[str, ...]:
    """Medians without the first round, and how many times as fast as the others."""
    mine, theirs, plain = (statistics.median(rates[1:]) for rates in found)
    return name, f"{mine:,.0f}", f"{theirs:,.0f}", f"{plain:,.0f}", f"{mine / theirs:.2f}", f"{mine / plain:.2f}"


def report() -> str:
    head = ("", "this package", "limits 5.8", "one plain EVALSHA", "of limits", "of the plain one")
    with server() as port:
        rows = []
        for name, calls in sync_calls(port).items():
            found: list[list[float]] = [[] for _ in calls]
            for _ in range(ROUNDS + 1):
                for rates, call in zip(found, calls, strict=True):
                    rates.append(sync_rate(call))
            rows.append(row(name, found))
        parts = [table("Redis, blocking, one thread: decisions a second", rows, head)]
        for loop, run in _loops().items():
            parts.append(table(f"Redis, {loop}, one event loop: decisions a second", run(async_rows(port)), head))
    return "\n".join(parts)


def _loops() -> dict[str, Callable[[Any], Any]]:
    loops: dict[str, Callable[[Any], Any]] = {"asyncio": asyncio.run}
    try:
        import uvloop
    except ImportError:
        return loops
    return {**loops, "uvloop": uvloop.run}


if __name__ == "__main__":
    print(report())
