"""Inputs of the simulation: your deployment, and the costs of a decision. The default costs are in measured.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...errors import ConfigError


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
    replicated: float
    """Bytes of an allowed hit to each replica."""
    state: float
    """Bytes of memory for each client and limit."""
    connection: float
    """Bytes of memory for each connection."""
    nodes: int = 1
    is_cluster: bool = False
    maxclients: int = 10_000
    jitter: tuple[float, ...] = (0.0,)
    """100 percentiles of the difference between the time of a decision and its mean, in microseconds."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The deployment to simulate: the options of the command. Rates are per second, times in microseconds."""

    workers: int
    rate: float
    limits: int = 1
    nodes: int = 1
    rtt: float = 500.0
    machines: int = 1
    cores: int | None = None
    is_shared: bool = False
    """Whether the servers run on the first machine of the workers, too."""
    threads: int = 0
    has_tags: bool = True
    """Whether all limits of a request have one hash tag."""
    clients: int = 100_000
    rejected: float = 0.0
    rejected_clients: int = 1_000
    second_calls: float = 0.0
    held_slots: int = 0
    consistency: str = "exact"
    amount: int = 1_000
    period: float = 60e6
    lease: float = 0.02
    replicas: int = 0
    application_cpu: float = 0.0

    @property
    def is_cluster(self) -> bool:
        return self.nodes > 1


def default_costs() -> dict[bool, MeasuredCosts]:
    """Return the costs of a server and of a cluster, as they were measured for this version."""
    return read_costs(Path(__file__).with_name("measured.json"))


def read_costs(file: Path) -> dict[bool, MeasuredCosts]:
    """Read the costs that ``save_costs`` has written."""
    try:
        costs = msgspec.json.decode(file.read_bytes(), type=list[MeasuredCosts])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"cannot read the measured costs: {error}. Write the file with --measure FILE --save JSON", str(file)
        ) from None
    return {each.is_cluster: each for each in costs}


def save_costs(file: Path, costs: MeasuredCosts) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode([costs])) + b"\n")
