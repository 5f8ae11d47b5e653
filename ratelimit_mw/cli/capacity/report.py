"""The figures of a deployment, from the simulation, and the warnings about them."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

import msgspec

from .calls import REPORTED_EVERY, lease_share
from .inputs import Deployment, MeasuredCosts
from .simulation import REQUESTS, Result, simulate

_MOST_NODE_CPU: Final = 0.7
_CHANCE: Final = 1.15
_MOST_WORKER_CPU: Final = 0.95  # a process cannot use more than one core
_LEAST_DECIDED: Final = 0.05
_BUDGET: Final = 50.0  # milliseconds: the default of ``store_timeout``
_MOST_TRIES: Final = 6
_SHORT: Final = 5_000  # requests of the simulations that look for the number of nodes


def describe(plan: Deployment, costs: dict[bool, MeasuredCosts], seed: int, requests: int = REQUESTS) -> dict[str, Any]:
    """Return the figures of a deployment. Keys name their units; CPU is in cores."""
    measured = costs[plan.is_cluster]
    result = simulate(plan, measured, seed, requests)
    per_node = max(1, plan.threads) + (plan.consistency == "reported" or plan.held_slots > 0)  # a thread of its own
    reading = min(plan.nodes, 2) * (plan.threads > 0)  # a thread reads the two records of overrides
    connections = plan.workers * (per_node * plan.nodes + reading)
    figures: dict[str, Any] = {
        "plan": msgspec.structs.asdict(plan),
        "inputs": measured.about,
        "seed": seed,
        "requests_per_second": plan.rate,
        "commands_per_second": result.commands,
        "decisions_per_command": plan.rate * result.decided / result.commands if result.commands else None,
        "latency_ms": {
            "mean": result.mean / 1e3,
            "p50": result.percentile(0.5) / 1e3,
            "p99": result.percentile(0.99) / 1e3,
        },
        "admission": admission(plan),
        "node": _describe_node(plan, measured, result, ceil(connections / plan.nodes)),
        "worker": {"cpu": result.worker_cpu, "connections": connections // plan.workers},
        "connections": connections,
        "nodes": plan.nodes,
        "replicas": plan.nodes * plan.replicas,
        "is_overloaded": result.is_overloaded,
    }
    figures["nodes_needed"] = _nodes_needed(plan, costs, result, seed)
    figures["warnings"] = list(_warnings(plan, measured, figures, result))
    return {name: _rounded(value) for name, value in figures.items()}


def _describe_node(plan: Deployment, measured: MeasuredCosts, result: Result, connections: int) -> dict[str, Any]:
    states = plan.clients * plan.limits / plan.nodes
    copied = result.hits * (1 - plan.rejected) * measured.replicated * plan.replicas
    return {
        "commands_per_second": result.commands / plan.nodes,
        "cpu": result.node_cpu,
        "busiest_cpu": result.busiest_node_cpu,
        "memory_bytes": round(states * measured.state + connections * measured.connection),
        "connections": connections,
        "received_bytes_per_second": result.sent / plan.nodes,
        "sent_bytes_per_second": result.received / plan.nodes,
        "replication_bytes_per_second": copied / plan.nodes,
    }


def _rounded(value: Any) -> Any:
    """Return a figure with four digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def admission(plan: Deployment) -> dict[str, Any]:
    """Return by how much a limit may be exceeded within one period, as a share of its amount, and why."""
    if plan.consistency == "leased":
        share = lease_share(plan) / plan.amount
        why = "each worker can consume one share that the store counted in the period before"
        return {"over": 0.0, "late": min(1.0, plan.workers * share), "reason": why}
    if plan.consistency == "reported":
        unknown = plan.rate / plan.workers / plan.clients * (REPORTED_EVERY + plan.rtt / 1e6) / plan.amount
        why = "a worker does not know the requests that the others have not reported yet"
        return {"over": (plan.workers - 1) * min(1.0, unknown), "late": 0.0, "reason": why}
    return {"over": 0.0, "late": 0.0, "reason": "the store decides each request"}


def _nodes_needed(plan: Deployment, costs: dict[bool, MeasuredCosts], result: Result, seed: int) -> int | None:
    """Return the number of nodes that keeps each below the bound; None when no number of nodes does."""
    nodes = plan.nodes
    if _is_enough(result):
        return nodes
    for _ in range(_MOST_TRIES):
        nodes = max(nodes + 1, ceil(nodes * result.node_cpu / _MOST_NODE_CPU * 1.05))
        result = simulate(msgspec.structs.replace(plan, nodes=nodes), costs[True], seed, _SHORT)
        if _is_enough(result):
            return nodes
    return None


def _is_enough(result: Result) -> bool:
    """Return whether the servers are below the bound. Chance makes one of many somewhat busier than the mean."""
    busiest = result.busiest_node_cpu
    return busiest < _MOST_NODE_CPU * _CHANCE and result.node_cpu < _MOST_NODE_CPU and not result.is_overloaded


def _warnings(plan: Deployment, measured: MeasuredCosts, figures: dict[str, Any], result: Result) -> Iterator[str]:
    node, worker, needed = figures["node"], figures["worker"], figures["nodes_needed"]
    if figures["is_overloaded"]:
        yield "requests arrive faster than they can be decided; on_store_error then decides some of them"
    elif figures["latency_ms"]["p99"] > _BUDGET:
        late = f"the p99 is above the default store_timeout of {_BUDGET:.0f} ms"
        yield f"{late}; on_store_error then decides these requests"
    if needed != plan.nodes:
        fix = f"{needed:,} nodes are enough" if needed else "more nodes do not help: one key may receive most requests"
        busiest = "the server" if plan.nodes == 1 else "the busiest node"
        yield f"{busiest} uses {node['busiest_cpu']:.0%} of the one core that Redis runs scripts on; {fix}"
    if worker["cpu"] > _MOST_WORKER_CPU:
        more = ceil(plan.workers * worker["cpu"] / max(result.decided, _LEAST_DECIDED) / _MOST_NODE_CPU)
        yield f"a worker uses {worker['cpu']:.0%} of a core for decisions; {more:,} workers are enough"
    if node["connections"] > measured.maxclients:
        yield (
            f"each server gets {node['connections']:,} connections, and its maxclients is {measured.maxclients:,}."
            " Raise maxclients and the limit of open files of the server"
        )
    if plan.cores and plan.workers / plan.machines * worker["cpu"] > plan.cores * _MOST_WORKER_CPU:
        yield f"the workers need all cores of a machine ({plan.cores}) for decisions; add machines"
    if plan.consistency == "leased" and (taken := plan.workers * lease_share(plan)) > plan.amount / 2:
        yield (
            f"{plan.workers:,} workers with leases of {lease_share(plan):,} take {taken:,} of {plan.amount:,}: leases"
            " get smaller, and workers call more often than shown. Use a smaller --lease"
        )
