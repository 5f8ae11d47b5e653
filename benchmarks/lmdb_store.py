"""Four worker processes on one machine: the LMDB store against ``limits`` with a Redis server on loopback.

All hits are allowed, because the rejection cache of this package would keep repeated rejections from the store.

`python -m benchmarks lmdb` runs all candidates in turn, round after round. Each process decides as fast as it can for
the same time. The report compares the number of decisions of all processes, and the processor time of one decision.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lmdb
from limits import parse, storage, strategies

from benchmarks.servers import Nodes, redis_nodes
from benchmarks.team import Team, team_of
from benchmarks.timing import Counters, Turn, in_turns, median, progress, ratio, table
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
AMOUNTS = {"sliding-window-log": 5_000}
SHAPES = (
    ("fixed-window", CLIENTS),
    ("fixed-window", 1),
    ("sliding-window-counter", CLIENTS),
    ("sliding-window-log", CLIENTS),
)
STATE = struct.Struct("<qq")
NAMES = [f"192.0.2.{number}" for number in range(CLIENTS)]
HEAD = ("", "decisions per second", "ratio", "CPU of the processes, µs", "CPU of the server, µs", "ratio of both")
Decide = Callable[[str], Any]


def ours(address: str, algorithm: str) -> Decide:
    """``hit``, which returns the full verdict."""
    # No wait for a busy processor uses up this budget, so the store makes each decision.
    settings = Settings(store_timeout="10s", on_store_error="deny")
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


def bare(folder: str, algorithm: str) -> Decide:
    """The least that a decision on LMDB can be: read a count, compare it, and write it, in one transaction."""
    path = Path(folder, algorithm)  # a process opens an environment once
    path.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(path), map_size=1 << 28, sync=False, metasync=False, readahead=False)

    def decide(client: str) -> bool:
        key = client.encode()
        with environment.begin(write=True) as transaction:
            found = transaction.get(key)
            count, ends = STATE.unpack(found) if found else (0, 0)
            if count >= AMOUNT:
                return False
            return transaction.put(key, STATE.pack(count + 1, ends))

    return decide


def work(make: Callable[[str, str], Decide], url: str, pipe: Connection) -> None:
    """Decide until the end time of each order. Report the decisions and the processor time."""
    makers = {algorithm: partial(make, url, algorithm) for algorithm in STRATEGIES}
    opened: dict[str, Decide] = {}
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        algorithm, clients, ends = order
        decide = opened.get(algorithm) or opened.setdefault(algorithm, makers[algorithm]())
        done, busy = 0, time.process_time()
        while not done or time.monotonic() < ends:  # a busy machine may start a turn late
            decide(NAMES[done % clients])
            done += 1
        pipe.send((done, time.process_time() - busy))


def turn(team: Team, nodes: Nodes | None, algorithm: str, clients: int) -> Turn:
    """Let all processes of a candidate decide for the same time."""
    counters = Counters if nodes is None else nodes.counters
    before = counters()
    reports = team.order((algorithm, clients, time.monotonic() + SPAN), SPAN)
    decisions, busy = map(sum, zip(*reports, strict=True))
    return Turn.over(decisions, SPAN, busy, counters() - before)


def row(name: str, own: list[Turn], first: list[Turn]) -> tuple[str, ...]:
    rate, cpu, server_cpu, _ = median(own)
    ratios = f"{ratio(own, first):.1f}", f"{ratio(own, first, 'whole_cpu'):.2f}"
    return name, f"{rate:,.0f}", ratios[0], f"{cpu:.0f}", f"{server_cpu:.0f}", ratios[1]


def report() -> str:
    rows = []
    with ExitStack() as stack:
        nodes = stack.enter_context(redis_nodes())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        candidates = {
            "`limits` on Redis, full": (peer_in_full, nodes.url, nodes),
            "`limits` on Redis, `hit`": (peer, nodes.url, nodes),
            "`lmdb://`": (ours, f"lmdb://{folder}/states", None),
            "a bare transaction of py-lmdb": (bare, f"{folder}/bare", None),
        }
        teams = [
            (stack.enter_context(team_of(work, [(make, url)] * PROCESSES)), served_by)
            for make, url, served_by in candidates.values()
        ]
        for algorithm, clients in SHAPES:
            title = f"{algorithm}, {f'{clients:,} keys' if clients > 1 else 'one key'}"
            progress(f"lmdb: {title}")
            found = in_turns([partial(turn, *each, algorithm, clients) for each in teams], ROUNDS, patience=60.0)
            rows += [row(f"{title}: {name}", own, found[0]) for name, own in zip(candidates, found, strict=True)]
    return table("Four processes on one machine", rows, HEAD)
