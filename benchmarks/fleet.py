"""Measure worker processes that share limits in Redis: ``python -m benchmarks fleet --workers 4 --nodes 3 --json``

Requests arrive at random, at a given rate, whether earlier requests have ended or not (open loop). The latency of a
request counts from its intended arrival, so a request that starts late counts as slow. Each worker first serves the
same arrivals without a decision: this is the cost of the generator, which the report lists separately.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from typing import Any, Final, get_args

from benchmarks import timing
from benchmarks.servers import Nodes, redis_nodes
from benchmarks.team import Team, team_of
from benchmarks.timing import Counters, progress, table
from benchmarks.worker import Load, Served, work
from ratelimit_mw.rules.options import Consistency


def measure(load: Load) -> dict[str, Any]:
    """Run the servers and the workers, and return one record."""
    with ExitStack() as stack:
        nodes = stack.enter_context(redis_nodes(load.nodes, load.replicas))
        team = stack.enter_context(team_of(work, [(load, nodes.url, number) for number in range(load.workers)]))
        before, began = read(nodes), time.monotonic()
        alone = serve(team, load.seconds / 2, decides=False)
        middle, idle = read(nodes), time.monotonic() - began
        served = serve(team, load.seconds, decides=True)
        counted = differences(read(nodes), middle)
        contents = [node.contents() for node in nodes.all]
    return record(load, served, alone, counted, idle_shares(differences(middle, before), idle), contents)


def serve(team: Team, seconds: float, decides: bool) -> list[Served]:
    start = time.monotonic() + 0.2 + seconds / 10  # until then the workers build their arrivals
    return team.order((start, seconds, decides), seconds * 2)


def read(nodes: Nodes) -> list[Counters]:
    return [node.counters() for node in nodes.all]


def differences(later: Sequence[Counters], earlier: Sequence[Counters]) -> list[Counters]:
    return [after - before for after, before in zip(later, earlier, strict=True)]


def idle_shares(counted: Sequence[Counters], seconds: float) -> list[float]:
    """The share of a core that a server takes without requests."""
    return [each.cpu / seconds for each in counted]


def record(
    load: Load,
    served: Sequence[Served],
    alone: Sequence[Served],
    counted: Sequence[Counters],
    idle: Sequence[float],
    contents: Sequence[dict[str, int]],
) -> dict[str, Any]:
    requests = sum(len(each.latencies) for each in served)
    primaries, replicas = counted[: load.nodes], counted[load.nodes :]
    total = sum(primaries, Counters())
    busy, generating, taken = cpu_us(served), cpu_us(alone), max(each.seconds for each in served)
    return {
        **asdict(load),
        "requests": requests,
        "requests_per_second": round(requests / taken, 1),
        **{name: sum(getattr(each, name) for each in served) for name in ("allowed", "rejected", "failed", "local")},
        "unfinished": sum(each.latencies.count(-1.0) for each in served),
        "commands": total.commands,
        "commands_per_request": round(total.commands / requests, 4),
        "requests_per_command": round(requests / total.commands, 2) if total.commands else None,
        "commands_per_second_per_node": [round(each.commands / taken, 1) for each in primaries],
        # Microseconds of processor time for a request.
        "worker_cpu_us": round(busy - generating, 2),
        "generator_cpu_us": generating,
        "server_cpu_us": round(total.cpu / requests * 1e6, 2),
        "replica_cpu_us": round(sum(each.cpu for each in replicas) / requests * 1e6, 2),
        "bytes_in_per_request": round(total.bytes_in / requests, 1),
        "bytes_out_per_request": round(total.bytes_out / requests, 1),
        "latency_ms": percentiles(served),
        "generator_latency_ms": percentiles(alone),
        "servers": [
            {"is_replica": i >= load.nodes, **asdict(each), "idle_cpu": round(idle[i], 4), **contents[i]}
            for i, each in enumerate(counted)
        ],
        "processes": [
            {"requests": len(own.latencies), "cpu_us": cpu_us([own]), "generator_cpu_us": cpu_us([other])}
            for own, other in zip(served, alone, strict=True)
        ],
    }


def cpu_us(group: Sequence[Served]) -> float:
    """Microseconds of processor time for a request."""
    return round(sum(each.cpu for each in group) / sum(len(each.latencies) for each in group) * 1e6, 2)


def percentiles(group: Sequence[Served]) -> dict[str, float]:
    """Milliseconds from the intended arrival to the decision."""
    times = sorted(seconds for each in group for seconds in each.latencies if seconds >= 0)
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(times[int((len(times) - 1) * place)] * 1e3, 3) for name, place in places.items()}


BUSY: dict[str, Any] = {"rate": 4_000, "clients": 100, "quota": "60000/minute"}
LOADS = {
    "one server, one process: 1,000 per second": Load(1, rate=1_000),
    "one server, one process: 4,000 per second": Load(1, rate=4_000),
    "one server, four processes: 4,000 per second": Load(4, rate=4_000),
    "the same, 100 clients, leased": Load(4, **BUSY, consistency="leased"),
    "one server, four processes: 2,000 per second, three features": Load(4, rate=2_000, limits=3, keys="features"),
    "Cluster, four processes: 2,000 per second, three features": Load(4, 3, rate=2_000, limits=3, keys="features"),
}
HEAD = ("", "commands per request", "CPU of the client, µs", "CPU of the servers, µs", "latency p50, ms", "p99")


def row(name: str, load: Load) -> tuple[str, ...]:
    progress(f"arrivals: {name}")
    found = measure(replace(load, seconds=min(load.seconds, timing.duration(timing.most_rounds))))
    cells = (f"{found[of]:.0f}" for of in ("worker_cpu_us", "server_cpu_us"))
    waits = (f"{found['latency_ms'][of]:.1f}" for of in ("p50", "p99"))
    return name, f"{found['commands_per_request']:.2f}", *cells, *waits


def report() -> str:
    return table("Requests that arrive at random", [row(*each) for each in LOADS.items()], HEAD)


MEANINGS: Final = {
    "workers": "the processes",
    "nodes": "the primaries; one node without replicas is a server without Cluster",
    "replicas": "the replicas of each primary",
    "limits": "the limits of a request",
    "keys": "limits of one client, or of a feature each",
    "rate": "requests per second of all processes",
    "seconds": "the length of the run",
    "clients": "how many clients the requests are spread over",
    "consistency": "the consistency of the rules",
    "mode": "how a process decides",
    "threads": "the threads of each process, with --mode threads",
    "quota": "the quota of each limit; by default no client reaches it",
    "algorithm": "the algorithm of each limit",
    "seed": "the same seed gives the same arrivals",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fleet", description=__doc__)
    choices = {"keys": ("client", "features"), "consistency": get_args(Consistency), "mode": ("asyncio", "threads")}
    for each in fields(Load):
        parser.add_argument(
            f"--{each.name}",
            type=type(each.default),
            default=each.default,
            choices=choices.get(each.name),
            help=f"{MEANINGS[each.name]} [default: %(default)s]",
        )
    parser.add_argument("--json", action="store_true", help="print the whole record, including each server and process")
    asked = vars(parser.parse_args(arguments))
    as_json = asked.pop("json")
    found = measure(Load(**asked))
    if as_json:
        print(json.dumps(found))
    else:
        rows = [(name, str(value)) for name, value in found.items() if name not in ("servers", "processes")]
        print(table("Fleet", rows, ("", "")))
