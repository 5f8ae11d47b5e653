"""A simulation of a fleet of workers and its servers: requests arrive at random times.

For a large fleet, the simulation runs the same share of the workers and of the servers, so the load of each stays the
same.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

from benchmarks.capacity.calls import CallShares
from benchmarks.capacity.costs import Deployment, MeasuredCosts
from benchmarks.capacity.processes import Clock, Machine, Process
from benchmarks.capacity.workers import SLOTS, SimulatedRequest, SimulatedWorker, SlotOperation

REQUESTS: Final = 25_000  # A second of work.
_SPANS: Final = (0.25e6, 20e6)  # The shortest and the longest simulation, in microseconds.
_EVEN: Final = 20  # With fewer clients for each server, the busiest server differs from the others.
_KEEPS_UP: Final = 0.97  # A fleet that decides a smaller share of its requests is overloaded.
_WARM_UP: Final = 0.25  # The share of the span before the counting starts.


class Result(NamedTuple):
    """Rates are per second of the whole fleet, CPU is in cores, times are in microseconds."""

    requests: float
    decided: float
    """Decisions for each request; below 1 when the fleet cannot keep up."""
    commands: float
    operations: float
    hits: float
    node_cpu: float
    busiest_node_cpu: float
    worker_cpu: float
    sent: float
    received: float
    latencies: list[float]
    """Of the simulated requests, in order."""

    def percentile(self, share: float) -> float:
        return self.latencies[int((len(self.latencies) - 1) * share)]

    @property
    def mean(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def is_overloaded(self) -> bool:
        """Whether more requests arrive than are decided."""
        return self.decided < _KEEPS_UP


class SimulatedFleet:
    """The part of the workers and servers that is simulated."""

    def __init__(self, plan: Deployment, measured: MeasuredCosts, seed: int, requests: int) -> None:
        self.plan, self.measured = plan, measured
        self.client = measured.blocking if plan.threads else measured.client
        self.random = random.Random(seed)
        self.shares = CallShares(plan)
        self.clock = Clock()
        is_even = plan.clients >= _EVEN * plan.nodes
        self.span = min(_SPANS[1], max(_SPANS[0] if is_even else 0.0, requests / plan.rate * 1e6))
        part = min(1.0, requests / (plan.rate * self.span / 1e6)) if is_even else 1.0
        nodes = max(1, round(plan.nodes * part))
        self.part = nodes / plan.nodes
        workers = max(1, round(plan.workers * self.part))
        machine = Machine(plan.cores)
        self.nodes = [Process(self.clock, machine, measured.server) for _ in range(nodes)]
        self.workers = [SimulatedWorker(self, machine) for _ in range(workers)]
        self._start_counting()

    def _start_counting(self) -> None:
        self.arrived = self.decided = 0
        self.application_us = 0.0
        self.parts = [0, 0, 0, 0]
        self.latencies: list[float] = []
        for process in (*self.nodes, *self.workers):
            process.busy = 0.0

    def run(self) -> None:
        self.clock.run(self.span * _WARM_UP)
        self._start_counting()
        self.clock.run(self.span * (1 + _WARM_UP))

    def operations(self, request: SimulatedRequest) -> list[SlotOperation]:
        """Return the operations of a client: one, or with different hash tags one for each limit."""
        plan, client = self.plan, self.random.randrange(self.plan.clients)
        if plan.has_tags or not plan.is_cluster:
            return [SlotOperation(request, client * 7_919 % SLOTS, plan.limits)]
        return [SlotOperation(request, (client + i * 104_729) * 7_919 % SLOTS, 1) for i in range(plan.limits)]

    def rounds(self, request: SimulatedRequest) -> list[list[SlotOperation] | None]:
        """Return the operations that a request sends at once, round after round. None is its decision."""
        chance, shares = self.random.random, self.shares
        rounds: list[list[SlotOperation] | None] = []
        if chance() < shares.asked:
            operations = self.operations(request)
            if chance() < shares.returned:
                rounds.append(self.operations(request))
            rounds.append(operations)
            if len(operations) > 1 and chance() < shares.rejected:
                # One slot rejects. The others are refunded and read again.
                rounds.append([each for each in operations[1:] for _ in range(2)])
            if chance() < shares.announced:
                operations.append(SlotOperation(request, 0, 1))
        rounds.append(None)
        if chance() < self.plan.second_calls:
            rounds.append(self.operations(request))
        return rounds


def simulate(plan: Deployment, measured: MeasuredCosts, seed: int = 1, requests: int = REQUESTS) -> Result:
    """Simulate about ``requests`` of the requests of a deployment, and return the numbers of the whole fleet."""
    fleet = SimulatedFleet(plan, measured, seed, requests)
    fleet.run()
    span = fleet.span / 1e6
    parts = [count / span / fleet.part for count in fleet.parts]
    servers = [each.busy / fleet.span + measured.server.idle / 1e6 for each in fleet.nodes]
    busy = sum(each.busy for each in fleet.workers) - fleet.application_us
    return Result(
        requests=fleet.arrived / span / fleet.part,
        decided=fleet.decided / max(1, fleet.arrived),
        commands=parts[1],
        operations=parts[2],
        hits=parts[3],
        node_cpu=sum(servers) / len(servers),
        busiest_node_cpu=max(servers),
        worker_cpu=busy / len(fleet.workers) / fleet.span,
        sent=measured.sent.of(*parts),
        received=measured.received.of(*parts),
        latencies=sorted(fleet.latencies) or [0.0],
    )
