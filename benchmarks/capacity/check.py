"""Compare the simulation with fleets of real processes and servers: ``python -m benchmarks capacity-check``.

Each fleet runs several times, and the medians are compared. The costs are measured before and after each run: the cores
of a shared machine can take twice as long for the same work some seconds later. The simulation knows that workers,
generators and servers share the cores of this machine. It must be within 15% for commands and CPU, and within 25% for
the p99. Run it as root: the fleet then has real-time priority, so that other processes of the machine delay nothing.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks import fleet, timing
from benchmarks.capacity.costs import Deployment, MeasuredCosts
from benchmarks.capacity.measure import measure
from benchmarks.capacity.simulation import simulate
from benchmarks.machine import real_time
from benchmarks.servers import redis_nodes
from benchmarks.timing import progress, table
from benchmarks.worker import Load

LOADS = {
    1: [
        Load(workers=1, rate=1_000),
        Load(workers=2, rate=1_000),
        Load(workers=2, rate=3_000),
        Load(workers=4, rate=800, limits=3),
        Load(workers=4, rate=2_000, limits=3),
        Load(workers=8, rate=800, mode="threads"),
    ],
    3: [
        Load(workers=2, nodes=3, rate=600),
        Load(workers=2, nodes=3, rate=1_500),
        Load(workers=4, nodes=3, rate=500, limits=3),
        Load(workers=4, nodes=3, rate=300, limits=3, keys="features"),
        Load(workers=4, nodes=3, rate=800, limits=3, keys="features"),
        Load(workers=8, nodes=6, rate=500),
    ],
}
ROUNDS, SECONDS = 7, 3.0
PHASE = 0.3  # seconds, of the measurement of costs
HEAD = ("measured, simulated", "commands/s", "CPU of servers, µs", "CPU of workers, µs", "p50, ms", "p99, ms")
FIGURES: dict[str, tuple[float, Callable[[dict[str, Any]], float]]] = {
    "commands/s": (0.15, lambda run: run["commands"] / run["seconds"]),
    "CPU of servers, µs": (0.15, lambda run: run["server_cpu_us"]),
    "CPU of workers, µs": (0.15, lambda run: run["worker_cpu_us"]),
    "p50, ms": (0.25, lambda run: run["latency_ms"]["p50"]),
    "p99, ms": (0.25, lambda run: run["latency_ms"]["p99"]),
}
"""The bound of the difference, and the figure in the record of a fleet."""


def report() -> str:
    is_short = timing.most_rounds == 1
    with nullcontext() if is_short else real_time():
        return table("Fleets, measured and simulated", rows_of_fleets(is_short), HEAD)


def rows_of_fleets(is_short: bool) -> list[tuple[str, ...]]:
    rounds, seconds = (1, 1.0) if is_short else (ROUNDS, SECONDS)
    rows = []
    for nodes, loads in LOADS.items():
        costs = measured(nodes)
        for load in loads[: 1 if is_short else None]:
            runs = []
            for i in range(rounds):
                progress(f"capacity-check: {name(load)}: {i + 1}/{rounds}")
                run = fleet.measure(replace(load, seconds=seconds))
                before, costs = costs, costs if is_short else measured(nodes)
                runs.append((run, [simulated(load, run, each) for each in (before, costs)]))
            rows.append(compared(load, runs))
    return rows


def measured(nodes: int) -> MeasuredCosts:
    with redis_nodes(nodes) as servers:
        return measure(servers.url, PHASE)


def compared(load: Load, runs: list[tuple[dict[str, Any], list[dict[str, float]]]]) -> tuple[str, ...]:
    cells = []
    for figure, (bound, read) in FIGURES.items():
        real = statistics.median(read(run) for run, _ in runs)
        expected = statistics.median(statistics.mean(each[figure] for each in found) for _, found in runs)
        off = expected / real - 1
        mark = "" if abs(off) <= bound else " **off**"
        digits = 0 if real >= 20 else 2
        cells.append(f"{real:,.{digits}f}, {expected:,.{digits}f} ({off:+.0%}){mark}")
    return (name(load), *cells)


def simulated(load: Load, run: dict[str, Any], costs: MeasuredCosts) -> dict[str, float]:
    plan = Deployment(
        workers=load.workers,
        rate=run["requests"] / run["seconds"],
        limits=load.limits,
        nodes=load.nodes,
        rtt=costs.rtt,
        cores=os.cpu_count(),
        threads=load.threads if load.mode == "threads" else 0,
        has_tags=load.keys == "client",
        clients=load.clients,
        application_cpu=run["generator_cpu_us"],
    )
    result = simulate(plan, costs)
    per_request = 1e6 / result.requests
    times = delayed([each / 1e3 for each in result.latencies], run["generator_latency_ms"])
    return {
        "commands/s": result.commands,
        "CPU of servers, µs": result.node_cpu * load.nodes * per_request,
        "CPU of workers, µs": result.worker_cpu * load.workers * per_request,
        "p50, ms": times[len(times) // 2],
        "p99, ms": times[int(len(times) * 0.99)],
    }


def delayed(times: list[float], delays: dict[str, float]) -> list[float]:
    """Add the delay of the generator to each latency, because a measured latency counts from the intended arrival.

    The delays were measured without decisions. Between two of their percentiles, they grow evenly.
    """
    chance = random.Random(1)
    points = [(0.0, 0.0), (0.5, delays["p50"]), (0.9, delays["p90"]), (0.99, delays["p99"]), (1.0, delays["max"])]

    def delay(place: float) -> float:
        (left, low), (right, high) = next(pair for pair in pairwise(points) if place <= pair[1][0])
        return low + (high - low) * (place - left) / (right - left)

    return sorted(each + delay(chance.random()) for each in times)


def name(load: Load) -> str:
    kind = f"process{'es' * (load.workers > 1)}{' with threads' * (load.mode == 'threads')}"
    tags = ", different tags" if load.keys == "features" else ""
    limits, servers = (f"{n} {noun}{'s' * (n > 1)}" for n, noun in ((load.limits, "limit"), (load.nodes, "server")))
    return f"{load.workers} {kind}, {servers}, {limits}{tags}, {load.rate:,.0f}/s"
