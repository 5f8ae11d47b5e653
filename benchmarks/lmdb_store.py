"""Four worker processes on one machine: the LMDB store against ``limits`` with a Redis server on loopback.

All hits are allowed; what is refused again and again this package does not even ask the store for.

`python -m benchmarks.lmdb_store`. All candidates in turn, round after round; every process makes decisions as fast as
it can for the same span of time, and what is compared is how many all of them made together.
"""

from __future__ import annotations

import argparse
import multiprocessing
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
SPAN = 1.0
ROUNDS = 7
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


def ours(address: str, algorithm: str) -> Decide:
    """``hit``, which is the full answer."""
    # A budget that no wait for a busy processor uses up, so that all is decided by the store.
    settings = Settings(store_timeout=10_000_000, on_store_error="deny")
    rule = Rule(limits=f"{AMOUNTS.get(algorithm, AMOUNT)}/minute", algorithm=algorithm)
    limiter = Limiter([rule], store=address, settings=settings)
    return lambda client: limiter.hit({"ip": client})


def peer(address: str, algorithm: str) -> Decide:
    """``hit`` alone: whether it passes, and no more."""
    limiter = STRATEGIES[algorithm](storage.RedisStorage(address))
    item = parse(f"{AMOUNTS.get(algorithm, AMOUNT)}/minute")
    return lambda client: limiter.hit(item, client)


def peer_in_full(address: str, algorithm: str) -> Decide:
    """``hit`` and ``get_window_stats``, which is the full answer there."""
    limiter = STRATEGIES[algorithm](storage.RedisStorage(address))
    item = parse(f"{AMOUNTS.get(algorithm, AMOUNT)}/minute")

    def decide(client: str) -> None:
        limiter.hit(item, client)
        limiter.get_window_stats(item, client)

    return decide


def worker(make: Callable[[str, str], Decide], address: str, algorithm: str, clients: int, pipe: Any) -> None:
    """Decide for a span whenever told to, and report how often and the worst wait."""
    decide = make(address, algorithm)
    names = [f"192.0.2.{number}" for number in range(clients)]
    decide(names[0])
    pipe.send(None)
    while (ends := pipe.recv()) is not None:
        done, worst = 0, 0
        before = time.monotonic_ns()
        while before < ends:
            decide(names[done % clients])
            after = time.monotonic_ns()
            worst = max(worst, after - before)
            before, done = after, done + 1
        pipe.send((done, worst))


class Team:
    """The processes of one candidate, waiting for their turn."""

    def __init__(self, make: Callable[[str, str], Decide], address: str, algorithm: str, clients: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(PROCESSES)]
        arguments = [(make, address, algorithm, clients, theirs) for _, theirs in pipes]
        self.processes = [context.Process(target=worker, args=each) for each in arguments]
        self.pipes = [mine for mine, _ in pipes]
        for process in self.processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv()

    def run(self, span: float) -> tuple[float, float]:
        """Decisions a second of all together, and the longest that one took, in milliseconds."""
        ends = time.monotonic_ns() + int(span * 1e9)
        for pipe in self.pipes:
            pipe.send(ends)
        reports = [pipe.recv() for pipe in self.pipes]
        return sum(done for done, _ in reports) / span, max(worst for _, worst in reports) / 1e6

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()


@contextmanager
def redis_server() -> Iterator[str]:
    """The address of a Redis of our own, which keeps nothing on disk."""
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
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def compare(algorithm: str, clients: int, lmdb: str, redis: str, rounds: int, span: float) -> list[tuple[str, ...]]:
    """One row for each candidate: the median of its rounds, as a multiple of the peer's, and the median worst wait."""
    candidates = {
        "`limits` 5.8 on Redis, `hit`": Team(peer, redis, algorithm, clients),
        "the same with its full answer": Team(peer_in_full, redis, algorithm, clients),
        "lmdb://": Team(ours, lmdb, algorithm, clients),
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, team in candidates.items():
            seen[name].append(team.run(span))
    for team in candidates.values():
        team.stop()
    medians = {name: [statistics.median(each) for each in zip(*runs[1:], strict=True)] for name, runs in seen.items()}
    unit = next(iter(medians.values()))[0]
    return [(name, f"{rate:,.0f}", f"{rate / unit:.1f}", f"{worst:.1f}") for name, (rate, worst) in medians.items()]


def report(rounds: int = ROUNDS, span: float = SPAN) -> str:
    head = ("", "decisions a second", "ratio", "longest, ms")
    tables = []
    with tempfile.TemporaryDirectory() as folder, redis_server() as redis:
        for algorithm, clients in SHAPES:
            lmdb = f"lmdb://{Path(folder) / algorithm}"
            title = f"{PROCESSES} processes, {algorithm}, {f'{clients:,} keys' if clients > 1 else 'one key'}"
            tables.append(table(title, compare(algorithm, clients, lmdb, redis, rounds, span), head))
    return "\n".join(tables)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"default: {ROUNDS}")
    asked = parser.parse_args()
    print(report(asked.rounds))
