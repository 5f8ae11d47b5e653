"""One decision on each server that machines can share: ``python -m benchmarks stores``

All servers are on loopback, without persistence. The processor time of a server is that of all its processes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from servers import HOST, Server, memcached_running, postgres_running, redis_running

from benchmarks.loops import CLIENTS, gathered, repeated
from benchmarks.timing import Counters, in_turns, median, progress, table, timed
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import open_store

ROUNDS = 9
LIMITS = ("1000000000/minute", "2000000000/hour", "3000000000/day")
FEATURES = [{"ip": f"192.0.2.{i}"} for i in range(CLIENTS)]
HEAD = ("", "decisions per second", "CPU of the client, µs", "CPU of the server, µs")


def counters_of(server: Server) -> Callable[[], Counters]:
    """Return a function that reads the processor time of a server and of its processes."""

    def read() -> Counters:
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [thread for each in (pid, *children) for thread in Path(f"/proc/{each}/task").iterdir()]
        return Counters(sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9)

    return read


def rows_of(name: str, limits: int, urls: dict[str, str], servers: dict[str, Server]) -> list[tuple[str, ...]]:
    """Compare the stores, one row for each. ``name`` is the way of the calls."""
    progress(f"stores: {name}, {limits}")
    rule = Rule(name=f"{name.split()[0]}{limits}", limits=list(LIMITS[:limits]), algorithm="sliding-window-counter")
    limiters = {kind: Limiter([rule], open_store(url, timeout_us=5_000_000)) for kind, url in urls.items()}
    with asyncio.Runner() as runner:
        runs = [
            repeated(lambda i, each=each: each.hit(FEATURES[i]))  # type: ignore[misc]
            if name == "blocking"
            else gathered(runner, lambda i, each=each: each.ahit(FEATURES[i]), 64)  # type: ignore[misc]
            for each in limiters.values()
        ]
        turns = in_turns(
            [timed(run, counters_of(servers[kind])) for run, kind in zip(runs, limiters, strict=True)], ROUNDS, 30
        )
        for each in limiters.values():
            runner.run(each.aclose())
    many = f"{name}, {limits} limit{'s' * (limits > 1)}"
    found = [(kind, median(each)) for kind, each in zip(limiters, turns, strict=True)]
    return [(f"{kind}, {many}", f"{t.rate:,.0f}", f"{t.cpu:.0f}", f"{t.server_cpu:.0f}") for kind, t in found]


def report() -> str:
    """Return the table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, Server] = {
            "Redis": stack.enter_context(redis_running(folder)),
            "PostgreSQL": stack.enter_context(postgres_running()),
            "Memcached": stack.enter_context(memcached_running(folder)),
        }
        ports = {kind: server.port for kind, server in servers.items()}
        urls = {
            "Redis": f"redis://{HOST}:{ports['Redis']}/0",
            "PostgreSQL": f"postgresql://postgres@{HOST}:{ports['PostgreSQL']}/postgres",
            "Memcached": f"memcached://{HOST}:{ports['Memcached']}",
        }
        rows = [row for name in ("blocking", "64 at a time") for n in (1, 3) for row in rows_of(name, n, urls, servers)]
    return table("One decision on a server", rows, HEAD)
