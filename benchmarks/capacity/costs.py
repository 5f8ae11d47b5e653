"""Inputs of the simulation: a deployment, and the costs of a decision, which are in measured.json."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).with_name("measured.json")


class Costs(msgspec.Struct, frozen=True, omit_defaults=True):
    """CPU of one process, or bytes, of each part of a call. Times are in microseconds."""

    decision: float = 0.0
    message: float = 0.0
    command: float = 0.0
    operation: float = 0.0
    hit: float = 0.0
    wakes: tuple[tuple[float, float], ...] = ()
    """The extra cost of the first work after a pause, when caches are cold: the length of the pause, and the cost."""
    idle: float = 0.0
    """CPU per second without a request."""

    def of(self, messages: float = 0, commands: float = 0, operations: float = 0, hits: float = 0) -> float:
        return messages * self.message + commands * self.command + operations * self.operation + hits * self.hit

    def wake(self, pause: float) -> float:
        """Return the extra cost of the first work after a pause. Between two measured pauses, it grows evenly."""
        before, least = 0.0, 0.0
        for length, cost in self.wakes:
            if pause < length:
                return least + (cost - least) * (pause - before) / (length - before)
            before, least = length, cost
        return least


class MeasuredCosts(msgspec.Struct, frozen=True):
    """The costs of decisions on one kind of store: one server or a cluster."""

    about: str
    """Date, machine and versions."""
    rtt: float
    """The round-trip time in microseconds, without the CPU of both ends."""
    server: Costs
    client: Costs
    blocking: Costs
    """The client without an event loop."""
    local: float
    """CPU of a decision without a call, in microseconds."""
    sent: Costs
    """Bytes to a server."""
    received: Costs
    state: float
    """Bytes of memory for each client and limit."""
    connection: float
    """Bytes of memory for each connection."""
    is_cluster: bool = False
    jitter: tuple[float, ...] = (0.0,)
    """100 percentiles of the difference between the time of a decision and its mean, in microseconds."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The deployment to simulate. Rates are per second, times in microseconds."""

    workers: int
    rate: float
    limits: int = 1
    nodes: int = 1
    rtt: float = 500.0
    cores: int | None = None
    """The cores of the machine that workers and servers share. Without it, each process has a core."""
    threads: int = 0
    has_tags: bool = True
    """Whether all limits of a request have one hash tag."""
    clients: int = 100_000
    rejected: float = 0.0
    rejected_clients: int = 1_000
    second_calls: float = 0.0
    is_leased: bool = False
    amount: int = 1_000
    period: float = 60e6
    lease: float = 0.02
    application_cpu: float = 0.0

    @property
    def is_cluster(self) -> bool:
        return self.nodes > 1


def read_costs() -> dict[bool, MeasuredCosts]:
    """Return the costs of one server, and those of a cluster under ``True``."""
    costs = msgspec.json.decode(FILE.read_bytes(), type=list[MeasuredCosts])
    return {each.is_cluster: each for each in costs}


def save_costs(costs: MeasuredCosts) -> None:
    """Replace the costs of the same kind of store."""
    found = {**read_costs(), costs.is_cluster: costs}
    FILE.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, found.values())) + b"\n]\n")
