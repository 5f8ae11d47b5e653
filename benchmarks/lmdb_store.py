"""Four worker processes on one machine: the LMDB store against ``limits`` with a Redis server on loopback.

All hits are allowed, because the rejection cache of this package would keep repeated rejections from the store.

`python -m benchmarks lmdb` runs all candidates in turn, round after round. Each process decides as fast as it can for
the same time. The report compares the number of decisions of all processes, and the processor time of one decision with
the server's part. On a busy machine the processor time is more reliable.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limits import parse, storage, strategies

from benchmarks.timing import table
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings

PROCESSES = 4
SPAN = 0.5
ROUNDS = 15
CLIENTS = 1_000
AMOUNT = 100_000_000
STRATEGIES = {
    "fixed-window": strategies.FixedWindowRateLimiter,
    "sliding-window-counter": strategies.SlidingWindowCounterRateLimiter,
    "sliding-window-log": strategies.MovingWindowRateLimiter,
}
AMOUNTS = {"sliding-window-log": 10_000}
SHAPES = (
    ("fixed-window", CLIENTS),
    ("fixed-window", 1),
    ("sliding-window-counter", CLIENTS),
    ("sliding-window-log", CLIENTS),
)
Decide = Callable[[str], Any]
Run = tuple[float, float, float]


def ours(address: str, algorithm: str) -> Decide:
    """``hit``, which returns the full verdict."""
    # No wait for a busy processor uses up this budget, so the store makes each decision.
    settings = Settings(store_timeout=10_000_000, on_store_error="deny")
    rule = Rule(limits=f"{AMOUNTS.get(algorithm, AMOUNT)}/minute", algorithm=algorithm)
    limiter = Limiter([rule], store=address, settings=settings)
    return lambda client: limiter.hit({"ip": client})


def peer(address: str, algorithm: str) -> Decide:
    """``hit`` alone, which returns whether the request is allowed."""
    limiter = STRATEGIES[algorithm](storage.RedisStorage(address))
    item = parse(f"{AMOUNTS.get(algorithm, AMOUNT)}/minute")
    return lambda client: limiter.hit(item, client)


def peer_in_full(address: str, algorithm: str) -> Decide:
    """``hit`` and ``get_window_stats``, which together return the full verdict."""
    limiter = STRATEGIES[algorithm](storage.RedisStorage(address))
    item = parse(f"{AMOUNTS.get(algorithm, AMOUNT)}/minute")

    def decide(client: str) -> None:
        limiter.hit(item, client)
        limiter.get_window_stats(item, client)

    return decide


def worker(make: Callable[[str, str], Decide], address: str, algorithm: str, clients: int, pipe: Any) -> None:
    """Decide until each end time that arrives. Report the decisions, the longest wait and the processor time."""
    decide = make(address, algorithm)
    names = [f"192.0.2.{number}" for number in range(clients)]
    decide(names[0])
    pipe.send(None)
    while (ends := pipe.recv()) is not None:
        done, worst, busy = 0, 0, time.process_time()
        before = time.monotonic_ns()
        while before < ends:
            decide(names[done % clients])
            after = time.monotonic_ns()
            worst = max(worst, after - before)
            before, done = after, done + 1
        pipe.send((done, worst, time.process_time() - busy))


class Team:
    """The processes of one candidate, waiting for their turn."""

    def __init__(self, make: Callable[[str, str], Decide], address: str, algorithm: str, clients: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(PROCESSES)]
        arguments = [(make, address, algorithm, clients, other) for _, other in pipes]
        self.processes = [context.Process(target=worker, args=each) for each in arguments]
        self.pipes = [own for own, _ in pipes]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv()

    def run(self, span: float, server: int = 0) -> Run:
        """Decisions per second of all processes, microseconds of processor time for one, longest wait in ms."""
        served = cpu_seconds(server) if server else 0.0
        ends = time.monotonic_ns() + int(span * 1e9)
        for pipe in self.pipes:
            pipe.send(ends)
        reports = [pipe.recv() for pipe in self.pipes]
        decisions, waits, busy = zip(*reports, strict=True)
        consumed = sum(busy) + (cpu_seconds(server) - served if server else 0.0)
        return sum(decisions) / span, consumed / sum(decisions) * 1e6, max(waits) / 1e6

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()


def cpu_seconds(process: int) -> float:
    """The processor time of another process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def redis_server() -> Iterator[tuple[str, int]]:
    """The URL and the process of a Redis server that keeps nothing on disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("this comparison needs redis-server: apt-get install redis-server")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


def compare(algorithm: str, clients: int, lmdb: str, redis: tuple[str, int]) -> list[tuple[str, ...]]:
    """One row for each candidate: medians of its rounds, and their ratios to the first candidate's rounds."""
    address, server = redis
    makers = {
        "`limits` 5.8 on Redis, `hit` and `get_window_stats`": (peer_in_full, address, server),
        "the same, `hit` alone: yes or no": (peer, address, server),
        "`lmdb://`": (ours, lmdb, 0),
    }
    teams = {name: (Team(make, place, algorithm, clients), pid) for name, (make, place, pid) in makers.items()}
    runs: dict[str, list[Run]] = {name: [] for name in teams}
    for number in range(ROUNDS + 1):
        for name in rotated(list(teams), number):
            team, pid = teams[name]
            runs[name].append(team.run(SPAN, pid))
    for team, _ in teams.values():
        team.stop()
    first = next(iter(runs.values()))[1:]
    return [row(name, own[1:], first) for name, own in runs.items()]


def rotated(names: list[str], number: int) -> list[str]:
    """The names in the order of a round. Each round starts with another name, so that noise affects all alike."""
    start = number % len(names)
    return names[start:] + names[:start]


def row(name: str, runs: list[Run], others: list[Run]) -> tuple[str, ...]:
    rate, cpu, worst = (statistics.median(column) for column in zip(*runs, strict=True))
    of_rate, of_cpu = (
        statistics.median(own[i] / other[i] for own, other in zip(runs, others, strict=True)) for i in (0, 1)
    )
    return name, f"{rate:,.0f}", f"{of_rate:.1f}", f"{cpu:.0f}", f"{of_cpu:.2f}", f"{worst:.0f}"


def report() -> str:
    head = ("", "decisions a second", "ratio", "processor time, us", "ratio", "longest wait, ms")
    tables = []
    with tempfile.TemporaryDirectory() as folder, redis_server() as redis:
        for algorithm, clients in SHAPES:
            lmdb = f"lmdb://{Path(folder) / algorithm}"
            title = f"{PROCESSES} processes, {algorithm}, {f'{clients:,} keys' if clients > 1 else 'one key'}"
            tables.append(table(title, compare(algorithm, clients, lmdb, redis), head))
    return "\n".join(tables)


if __name__ == "__main__":
    print(report())
