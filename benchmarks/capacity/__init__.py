"""Simulate deployments, and show the servers that each needs: ``python -m benchmarks capacity``.

The costs are in measured.json. ``python -m benchmarks.capacity.measure`` measures them again.
"""

from __future__ import annotations

from math import ceil

import msgspec

from benchmarks import timing
from benchmarks.capacity.costs import Deployment, MeasuredCosts, read_costs
from benchmarks.capacity.simulation import REQUESTS, Result, simulate
from benchmarks.timing import table

FIFTY = Deployment(workers=50, rate=100_000)
DEPLOYMENTS = {
    "8 workers, 4,000 requests/s, one limit": Deployment(workers=8, rate=4_000),
    "50 workers, 100,000 requests/s, one limit": FIFTY,
    "the same, three limits by one feature": msgspec.structs.replace(FIFTY, limits=3),
    "the same, three limits by different features": msgspec.structs.replace(FIFTY, limits=3, has_tags=False),
    "the same, three limits by one feature, 20 threads in each worker": msgspec.structs.replace(
        FIFTY, limits=3, threads=20
    ),
    "the same, one limit, a second call for each request": msgspec.structs.replace(FIFTY, second_calls=1.0),
    "the same, one limit, half of the requests rejected, from 100 clients": msgspec.structs.replace(
        FIFTY, rejected=0.5, rejected_clients=100
    ),
    "the same, one limit, 1,000 clients, leases of 1% of 100,000/minute": msgspec.structs.replace(
        FIFTY, clients=1_000, is_leased=True, lease=0.01, amount=100_000
    ),
    "10,000 workers, 1,000,000 requests/s, three limits by one feature": Deployment(
        workers=10_000, rate=1_000_000, limits=3
    ),
}
"""Add your own, and run the command again."""
HEAD = (
    "deployment",
    "servers",
    "CPU of a server",
    "memory of a server, MB",
    "connections of a server",
    "requests per command",
    "CPU of all workers, cores",
    "p50, ms",
    "p99, ms",
)
MOST_CPU = 0.7
"""The share of its core that a server may use."""
_CHANCE = 1.15  # by chance, one of many servers is busier than the mean


def report() -> str:
    costs = read_costs()
    plans = list(DEPLOYMENTS.items())[: 1 if timing.most_rounds == 1 else None]
    rows = [row_of(name, plan, costs) for name, plan in plans]
    about = "; ".join(sorted({each.about for each in costs.values()}))
    return f"{table('Deployments, simulated', rows, HEAD)}\nCosts: {about}.\n"


def row_of(name: str, plan: Deployment, costs: dict[bool, MeasuredCosts]) -> tuple[str, ...]:
    plan, result = with_servers(plan, costs)
    measured = costs[plan.is_cluster]
    connections = ceil(connections_of(plan) / plan.nodes)
    memory = plan.clients * plan.limits / plan.nodes * measured.state + connections * measured.connection
    return (
        name,
        f"{plan.nodes:,}",
        f"{result.node_cpu:.0%}",
        f"{memory / 1e6:,.0f}",
        f"{connections:,}",
        f"{result.requests / result.commands:.2f}",
        f"{result.worker_cpu * plan.workers:,.1f}",
        f"{result.percentile(0.5) / 1e3:.2f}",
        f"{result.percentile(0.99) / 1e3:.2f}",
    )


def with_servers(
    plan: Deployment, costs: dict[bool, MeasuredCosts], requests: int = REQUESTS
) -> tuple[Deployment, Result]:
    """Return the deployment with as few servers as keep up and use less than ``MOST_CPU`` of their core."""
    while not _is_enough(result := simulate(plan, costs[plan.is_cluster], requests=requests)):
        nodes = max(plan.nodes + 1, ceil(plan.nodes * result.node_cpu / MOST_CPU))
        plan = msgspec.structs.replace(plan, nodes=nodes)
    return plan, result


def _is_enough(result: Result) -> bool:
    is_cool = result.node_cpu < MOST_CPU and result.busiest_node_cpu < MOST_CPU * _CHANCE
    return is_cool and not result.is_overloaded


def connections_of(plan: Deployment) -> int:
    """Return the connections of all workers: one for each thread and server, or one for each event loop and server.

    One more thread of a blocking worker reads the overrides, from two servers.
    """
    reading = min(plan.nodes, 2) * (plan.threads > 0)
    return plan.workers * (max(1, plan.threads) * plan.nodes + reading)
