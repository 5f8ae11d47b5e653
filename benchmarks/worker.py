"""One worker process of a fleet: its requests, and their cost. See ``fleet.py``."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import selectors
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store

BUDGET = 5_000_000  # microseconds. No wait for a busy processor uses up this budget, so the store makes each decision
WARMING = 0.5  # seconds
PATIENCE = 30.0  # seconds, after the last arrival

Arrivals = tuple["array[float]", "array[int]"]
"""When requests arrive, in seconds from the start, and the numbers of their clients."""


@dataclass(frozen=True)
class Load:
    """The servers, the workers and the arrivals of a run."""

    workers: int = 2
    nodes: int = 1
    replicas: int = 0
    limits: int = 1
    keys: str = "client"
    rate: float = 1_000.0
    seconds: float = 5.0
    clients: int = 1_000
    consistency: str = "exact"
    mode: str = "asyncio"
    threads: int = 8
    quota: str = "1000000000/minute"
    algorithm: str = "sliding-window-counter"
    seed: int = 1

    def limiter(self, url: str) -> Limiter:
        options: Any = {"limits": self.quota, "algorithm": self.algorithm, "consistency": self.consistency}
        rules = [Rule(name=f"limit-{i}", key=[feature], **options) for i, feature in enumerate(self.features())]
        settings = Settings(fleet_size=self.workers, reload_interval=0)  # no calls besides those of the requests
        return Limiter(rules, open_store(url, BUDGET), settings=settings)

    def features(self) -> list[str]:
        """The feature that each limit counts by. Limits of one client are in one slot of a cluster."""
        return ["ip"] * self.limits if self.keys == "client" else [f"feature{i}" for i in range(self.limits)]

    def requests(self) -> list[dict[str, str]]:
        """The features of a request of each client."""
        return [{name: f"{name}-{i}" for name in dict.fromkeys(self.features())} for i in range(self.clients)]

    def arrivals(self, worker: int, seconds: float) -> Arrivals:
        """The requests of a worker: random, and the same in each run."""
        chance = random.Random(f"{self.seed}/{worker}")
        times, clients = array("d"), array("L")
        now, rate = 0.0, self.rate / self.workers
        while (now := now + chance.expovariate(rate)) < seconds:
            times.append(now)
            clients.append(chance.randrange(self.clients))
        return times, clients


@dataclass
class Served:
    """The outcomes of one worker."""

    latencies: array[float]
    """Seconds from the intended arrival of each request to its decision."""
    seconds: float = 0.0
    """From the start to the last decision."""
    cpu: float = 0.0
    allowed: int = 0
    rejected: int = 0
    failed: int = 0
    local: int = 0

    def count(self, verdict: Any) -> None:
        if verdict:
            self.allowed += 1
        else:
            self.rejected += 1


class Worker:
    """One process: a limiter, and the arrivals that it serves."""

    def __init__(self, load: Load, url: str, number: int) -> None:
        self._load, self._number = load, number
        self._limiter = load.limiter(url)
        self._requests = load.requests()
        self._is_blocking = load.mode == "threads"
        loop = asyncio.SelectorEventLoop(selectors.SelectSelector())  # epoll would round each wait up to 1 ms
        self._runner = asyncio.Runner(loop_factory=lambda: loop)

    def prepare(self) -> None:
        """Connect, to each server of a cluster as well, and let the processor see the code before it is measured."""
        if self._is_blocking:
            self._limiter.start()
        else:
            self._runner.run(self._limiter.astart())
        self.serve(time.monotonic(), self.arrivals(WARMING), decides=True)

    def arrivals(self, seconds: float) -> Arrivals:
        return self._load.arrivals(self._number, seconds)

    def serve(self, start: float, arrivals: Arrivals, decides: bool) -> Served:
        """Serve arrivals from a time of the monotonic clock, with decisions or without."""
        served = Served(array("d", [-1.0]) * len(arrivals[0]))
        local = self._limiter.local_decisions
        gc.collect()
        time.sleep(max(0.0, start - time.monotonic()))
        began = time.process_time()
        if self._is_blocking:
            self._serve_in_threads(start, arrivals, served, decides)
        else:
            self._runner.run(self._serve_on_loop(start, arrivals, served, decides))
        served.cpu, served.seconds = time.process_time() - began, time.monotonic() - start
        served.local = self._limiter.local_decisions - local
        return served

    async def _serve_on_loop(self, start: float, arrivals: Arrivals, served: Served, decides: bool) -> None:
        decide: Callable[[dict[str, str]], Awaitable[Any]] = self._limiter.ahit if decides else _allow_async
        requests, latencies, clock = self._requests, served.latencies, time.monotonic

        async def one(i: int, due: float, client: int) -> None:
            try:
                served.count(await decide(requests[client]))
            except Exception:
                served.failed += 1
            latencies[i] = clock() - due

        tasks = set()
        for i, (after, client) in enumerate(zip(*arrivals, strict=True)):
            due = start + after
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(one(i, due, client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)

    def _serve_in_threads(self, start: float, arrivals: Arrivals, served: Served, decides: bool) -> None:
        """Each thread takes the next arrival, as the threads of a server take the next connection."""
        decide = self._limiter.hit if decides else _allow
        requests, latencies, clock = self._requests, served.latencies, time.monotonic
        numbers, last, ends = itertools.count(), len(arrivals[0]), start + self._load.seconds + PATIENCE
        lock = threading.Lock()

        def run() -> None:
            while (i := next(numbers)) < last and clock() < ends:
                due = start + arrivals[0][i]
                if (wait := due - clock()) > 0:
                    time.sleep(wait)
                try:
                    verdict = decide(requests[arrivals[1][i]])
                    with lock:
                        served.count(verdict)
                except Exception:
                    with lock:
                        served.failed += 1
                latencies[i] = clock() - due

        threads = [threading.Thread(target=run) for _ in range(self._load.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        self._runner.run(self._limiter.aclose())
        self._runner.close()


def _allow(features: dict[str, str]) -> bool:
    return True


async def _allow_async(features: dict[str, str]) -> bool:
    return True


def work(load: Load, url: str, number: int, pipe: Connection) -> None:
    """Serve each (start, seconds, decides) that arrives, until None does."""
    worker = Worker(load, url, number)
    worker.prepare()
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        start, seconds, decides = order
        pipe.send(worker.serve(start, worker.arrivals(seconds), decides))
    worker.close()
