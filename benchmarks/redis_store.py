"""Compare the Redis store with ``limits`` on one server, in turns: ``python -m benchmarks redis``

A decision has the full result: allowed, remaining, reset, retry. ``limits`` returns that with ``hit`` and then
``get_window_stats``; ``hit`` alone returns yes or no. The plain script is an ``INCRBY`` by ``EVALSHA``, over redis-py.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis
import redis.asyncio
from limits import parse, strategies
from limits.aio import strategies as aio_strategies
from limits.aio.storage import RedisStorage as AsyncRedisStorage
from limits.errors import ConfigurationError
from limits.storage import RedisStorage

from benchmarks.timing import MissingError, in_turns, progress, ratio, table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store

ROUNDS = 21
ALGORITHMS = {"fixed-window": "FixedWindow", "sliding-window-counter": "SlidingWindowCounter"}
LIMITS = ("1000000000/minute", "2000000000/hour", "3000000000/day")
PLAIN = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
CLIENTS = 256
NAMES = [f"192.0.2.{i}" for i in range(CLIENTS)]
FEATURES = [{"ip": name} for name in NAMES]
SPANS = {1: 0.05, 64: 0.1, 256: 0.2}  # seconds of one candidate's turn, by how many requests there are at a time
BUSY_ROUNDS = 7
SPEED = ("", "a second", "decisions a command", "of `limits`, full", "of `limits`, `hit`", "of a plain script")
BUSY = ("", "this package", "`limits`, full", "`limits`, `hit`", "plain script")

Call = Callable[[int], Any]
AsyncCall = Callable[[int], Awaitable[Any]]


@contextmanager
def server() -> Iterator[int]:
    """A Redis of its own, on a free port."""
    program = shutil.which("redis-server")
    if program is None:
        raise MissingError("redis-server is not installed: apt-get install redis-server")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    quiet = ["--save", "", "--appendonly", "no", "--loglevel", "warning", "--bind", "127.0.0.1"]
    process = subprocess.Popen([program, "--port", str(port), *quiet], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            while not _answers(client):
                time.sleep(0.01)
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def open_limiter(port: int, algorithm: str, limits: int = 1) -> Limiter:
    # The time budget is not what is measured, and a machine under load would break it.
    store = open_store(f"redis://127.0.0.1:{port}/0", timeout_us=5_000_000)
    return Limiter([Rule(name=f"api-{limits}", limits=list(LIMITS[:limits]), algorithm=algorithm)], store=store)


class Observed:
    """The commands and the processor time of the server and of this process."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port)

    def per_command(self, run: Callable[[], int]) -> str:
        """Decisions per command, in one more run."""
        self._client.config_resetstat()
        decisions = run()
        return f"{decisions / self._client.info('commandstats')['cmdstat_evalsha']['calls']:.0f}"

    def busy(self, candidates: list[Callable[[], int]]) -> list[float]:
        """Microseconds of both processors together for one decision, in some more runs in turns."""
        consumed, decisions = [0.0] * len(candidates), [0] * len(candidates)
        for i in [*range(len(candidates))] * BUSY_ROUNDS:
            before = self._seconds()
            decisions[i] += candidates[i]()
            consumed[i] += self._seconds() - before
        return [seconds / count * 1e6 for seconds, count in zip(consumed, decisions, strict=True)]

    def _seconds(self) -> float:
        usage = self._client.info("cpu")
        return float(usage["used_cpu_user"] + usage["used_cpu_sys"] + time.process_time())


class Rows(NamedTuple):
    """Decisions per second, and their processor time."""

    speed: tuple[str, ...]
    busy: tuple[str, ...]


def compared(name: str, candidates: list[Callable[[], int]], observed: Observed) -> Rows:
    """This package, the others, and how many times as fast as each."""
    progress(f"redis: {name}")
    own, *others = in_turns(candidates, ROUNDS)
    ratios = [f"{ratio(own, theirs):.2f}" for theirs in others]
    busy = [f"{us:.0f}" for us in observed.busy(candidates)]
    speed = (name, f"{statistics.median(own):,.0f}", observed.per_command(candidates[0]), *ratios)
    return Rows(speed, (name, *busy))


# -- blocking ----------------------------------------------------------------------------------------------------


def sync_row(port: int, algorithm: str, limits: int) -> Rows:
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
    row = compared(name, [repeated(call) for call in calls], Observed(port))
    limiter.close()
    return row


def repeated(call: Call) -> Callable[[], int]:
    """Calls one after another, for a span that is the same for all candidates."""

    def run() -> int:
        ends = time.perf_counter() + SPANS[1]
        call(0)
        done = 1
        while time.perf_counter() < ends:
            call(done % CLIENTS)
            done += 1
        return done

    return run


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
        rates = in_turns([gathered(runner, call, concurrent) for call in calls], 7)
        medians = dict(zip(self._storages, map(statistics.median, rates), strict=True))
        best = max(medians, key=medians.__getitem__)
        return best, self._storages[best]


def _hit(storage: AsyncRedisStorage, algorithm: str, in_full: bool = False) -> AsyncCall:
    theirs, item = getattr(aio_strategies, f"{ALGORITHMS[algorithm]}RateLimiter")(storage), parse(LIMITS[0])

    async def full(i: int) -> None:
        await theirs.hit(item, NAMES[i])
        await theirs.get_window_stats(item, NAMES[i])

    return full if in_full else lambda i: theirs.hit(item, NAMES[i])


def gathered(runner: asyncio.Runner, call: AsyncCall, concurrent: int) -> Callable[[], int]:
    """Concurrent clients, each with one request after another, for a span."""

    async def worker(i: int, ends: float) -> int:
        await call(i)
        done = 1
        while time.perf_counter() < ends:
            await call(i)
            done += 1
        return done

    async def workers() -> int:
        ends = time.perf_counter() + SPANS[concurrent]
        return sum(await asyncio.gather(*(worker(i, ends) for i in range(concurrent))))

    return lambda: runner.run(workers())


def async_rows(port: int, runner: asyncio.Runner) -> tuple[list[Rows], list[str]]:
    """The rows, and for each number at a time the client that ``limits`` is fastest with."""
    peers = Peers(runner, port)
    rows, chosen = [], []
    for concurrent in SPANS:
        progress(f"redis: the best client for limits, {concurrent} at a time")
        name, storage = peers.fastest(runner, concurrent)
        chosen.append(f"{name} at {concurrent}")
        rows += [async_row(port, runner, algorithm, concurrent, storage) for algorithm in ALGORITHMS]
    return rows, chosen


def async_row(port: int, runner: asyncio.Runner, algorithm: str, concurrent: int, storage: AsyncRedisStorage) -> Rows:
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
    row = compared(f"{algorithm}, {concurrent} at a time", candidates, Observed(port))
    runner.run(limiter.aclose())
    runner.run(client.aclose())
    return row


def report() -> str:
    with server() as port:
        blocking = [sync_row(port, algorithm, limits) for limits in (1, 3) for algorithm in ALGORITHMS]
        with asyncio.Runner() as runner:
            rows, chosen = async_rows(port, runner)
    tables = [
        table("Redis, blocking, one thread: decisions", [row.speed for row in blocking], SPEED),
        table("Redis, asyncio, one limit: decisions", [row.speed for row in rows], SPEED),
        f"`limits` with {', '.join(chosen)}.\n",
        table("Redis: processor time of a decision, client and server, us", [r.busy for r in (*blocking, *rows)], BUSY),
    ]
    return "\n".join(tables)


if __name__ == "__main__":
    print(report())
