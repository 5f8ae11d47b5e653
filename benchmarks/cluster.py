"""Compare a Redis Cluster of three primaries with one server, in turns: ``python -m benchmarks cluster``

Both decide the same requests in this process. A request has several limits, of one client or of several features. The
client has a core of its own, because servers on the same core would empty its caches.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

from benchmarks import timing
from benchmarks.loops import CLIENTS, gathered, repeated
from benchmarks.machine import on_cores, real_time
from benchmarks.servers import Nodes, redis_nodes
from benchmarks.timing import in_turns, median, progress, ratio, table, timed
from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store

ROUNDS = 21
AT_A_TIME = 64
AMOUNT = "1000000000"
BUDGET = 5_000_000  # microseconds. No wait for a busy processor uses up this budget
FEATURES = [
    {"ip": f"192.0.2.{i}", "user": f"user-{i}", "tenant": f"tenant-{i}", "endpoint": "/login"} for i in range(CLIENTS)
]
HEAD = (
    "",
    "commands, one server",
    "Cluster",
    "round trips, Cluster",
    "speed, of one server",
    "CPU of the client, µs",
    "of one server",
    "CPU of the servers, µs",
    "of one server",
)


def rule(*key: str, limits: str = f"{AMOUNT}/minute") -> Rule:
    return Rule(name="-".join(key), key=key, limits=limits, algorithm="sliding-window-counter")


CASES = {
    "one limit": [rule("ip")],
    "two windows of one client": [rule("ip", limits=f"{AMOUNT}/minute; 2{AMOUNT}/hour")],
    "three limits of one client": [rule("ip", limits=f"{AMOUNT}/minute; 2{AMOUNT}/hour"), rule("endpoint", "ip")],
    "limits by IP address, user, endpoint and IP address": [rule("ip"), rule("user"), rule("endpoint", "ip")],
    "limits by IP address, user, tenant": [rule("ip"), rule("user"), rule("tenant")],
    "the same, the last one rejects": [rule("ip"), rule("user"), rule("tenant", limits="1/day")],
}


def open_limiter(rules: list[Rule], nodes: Nodes) -> Limiter:
    settings = Settings(
        rejection_cache=0, fleet_size=1, reload_interval=0
    )  # each request asks the servers for its own limits only
    return Limiter(rules, open_store(nodes.url, BUDGET), settings=settings)


@contextmanager
def counted_round_trips() -> Iterator[Callable[[], int]]:
    """Count how often this process sends after it has received, and so starts to wait once more."""
    operations: list[str] = []
    plain = {name: getattr(socket.socket, name) for name in ("send", "recv")}

    def recorded(name: str) -> Callable[..., Any]:
        def operation(*arguments: Any) -> Any:
            operations.append(name)
            return plain[name](*arguments)

        return operation

    for name in plain:
        setattr(socket.socket, name, recorded(name))
    try:
        yield lambda: sum(pair == ("send", "recv") for pair in pairwise(operations))
    finally:
        for name, operation in plain.items():
            setattr(socket.socket, name, operation)


def round_trips(rules: list[Rule], nodes: Nodes) -> int:
    """The round trips of one blocking request, on connections that are open."""
    limiter = open_limiter(rules, nodes)
    for features in FEATURES:
        limiter.hit(features)
    with counted_round_trips() as count:
        limiter.hit(FEATURES[0])
        found = count()
    limiter.close()
    return found


def row(name: str, runs: list[Callable[[], int]], both: list[Nodes], trips: int) -> tuple[str, ...]:
    progress(f"cluster: {name}")
    one, cluster = in_turns([timed(run, nodes.counters) for run, nodes in zip(runs, both, strict=True)], ROUNDS)
    alone, shared = median(one), median(cluster)
    return (
        name,
        f"{alone.commands:.2f}",
        f"{shared.commands:.2f}",
        str(trips),
        f"{ratio(cluster, one):.2f}",
        f"{shared.cpu:.0f}",
        f"{ratio(cluster, one, 'cpu'):.2f}",
        f"{shared.server_cpu:.0f}",
        f"{ratio(cluster, one, 'server_cpu'):.2f}",
    )


def rows(both: list[Nodes], runner: asyncio.Runner | None) -> list[tuple[str, ...]]:
    found = []
    for name, rules in CASES.items():
        limiters = [open_limiter(rules, nodes) for nodes in both]
        runs = [closed_loop(limiter, runner) for limiter in limiters]
        found.append(row(name, runs, both, round_trips(rules, both[1])))
        for limiter in limiters:
            if runner:
                runner.run(limiter.aclose())
            limiter.close()
    return found


def closed_loop(limiter: Limiter, runner: asyncio.Runner | None) -> Callable[[], int]:
    if runner is None:
        return repeated(lambda i: limiter.hit(FEATURES[i]))
    return gathered(runner, lambda i: limiter.ahit(FEATURES[i]), AT_A_TIME)


def report() -> str:
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if timing.most_rounds == 1 else real_time())
        with on_cores(is_client=False):
            one, cluster = (stack.enter_context(redis_nodes(primaries)) for primaries in (1, 3))
        stack.enter_context(on_cores(is_client=True))
        runner = stack.enter_context(asyncio.Runner())
        titles = {"blocking, one thread": None, f"asyncio, {AT_A_TIME} at a time": runner}
        tables = [
            table(f"Redis Cluster of three primaries, {title}", rows([one, cluster], each), HEAD)
            for title, each in titles.items()
        ]
    return "\n".join(tables)
