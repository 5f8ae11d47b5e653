"""A simulation of workers and servers: requests arrive at any time, workers share calls, servers run them in turn.

A worker is an event loop with the batches of stores/redis/batch.py, or threads without batches. Of a large fleet, the
simulation runs a part: as large a part of the workers as of the servers, so that each has its load in the whole fleet.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from .calls import RENEWED_EVERY, REPORTED_EVERY, CallShares
from .inputs import Deployment, MeasuredCosts
from .processes import Clock, Machine, Process

SLOTS: Final = 16_384
MOST: Final = 256  # A test compares these with the store.
WORTHWHILE: Final = 32
MOST_CALLS: Final = 4
_REQUESTS: Final = 25_000  # A second of work.
_SPANS: Final = (0.25e6, 20e6)  # At least and at most, in microseconds.
_KEEPS_UP: Final = 0.97  # Of the requests are decided in the span. The rest are still under way.
_WARM_UP: Final = 0.25  # Of the span, before the counting starts.


class Result(NamedTuple):
    """Rates are per second of the whole fleet, CPU is in cores, times are in microseconds."""

    requests: float
    decided: float
    """Decisions for each request; below 1 when the fleet cannot keep up."""
    messages: float
    commands: float
    operations: float
    hits: float
    node_cpu: float
    busiest_node_cpu: float
    worker_cpu: float
    sent: float
    received: float
    mean: float
    p50: float
    p99: float

    @property
    def is_overloaded(self) -> bool:
        """Whether more requests arrive than are decided."""
        return self.decided < _KEEPS_UP


class SlotOperation(NamedTuple):
    """Part of a request in one slot."""

    request: SimulatedRequest
    slot: int
    hits: int


class SimulatedRequest:
    """Rounds of operations. The decision is known after ``decisive`` of them."""

    __slots__ = ("arrived", "decisive", "left", "made", "rounds")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.rounds: list[list[SlotOperation]] = []
        self.decisive = self.made = self.left = 0


class SimulatedServer:
    """A server."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        self.process = Process(fleet.clock, machine, fleet.measured.server)
        self._fleet = fleet

    def receive(self, message: tuple[SimulatedCalls, list[SlotOperation], float]) -> None:
        caller, members, cpu = message
        self.process.submit(lambda: (cpu, partial(self._fleet.deliver, caller.receive, members)))


class SimulatedCalls:
    """The calls of a worker to a server: one for each operation, as blocking threads make them."""

    def __init__(self, worker: SimulatedWorker, node: SimulatedServer) -> None:
        self._worker = worker
        self._fleet = worker.fleet
        self._node = node

    def join(self, operation: SlotOperation, is_alone: bool) -> None:
        self._worker.process.submit(partial(self._send, [operation]), is_first=is_alone)

    def _send(self, members: list[SlotOperation]) -> tuple[float, Callable[[], None]]:
        fleet = self._fleet
        commands = len({each[1] for each in members}) if fleet.plan.is_cluster else 1
        parts = (1, commands, len(members), sum([each[2] for each in members]))
        fleet.count(parts)
        message = (self, members, fleet.measured.server.of(*parts))
        return fleet.client.of(*parts), partial(fleet.deliver, self._node.receive, message)

    def receive(self, members: list[SlotOperation]) -> None:
        self._worker.process.submit(lambda: (0.0, partial(self._conclude, members)))

    def _conclude(self, members: list[SlotOperation]) -> None:
        for each in members:
            self._worker.conclude(each[0])


class BatchingCalls(SimulatedCalls):
    """As Batcher, or NodeBatcher of a cluster."""

    def __init__(self, worker: SimulatedWorker, node: SimulatedServer) -> None:
        super().__init__(worker, node)
        self._waiting: deque[SlotOperation] = deque()
        self._out = 0
        self._last_was_lone = True

    def join(self, operation: SlotOperation, is_alone: bool) -> None:
        waiting = self._waiting
        if is_alone and not self._out and self._last_was_lone and not waiting:
            self._out = 1
            super().join(operation, is_alone)
            return
        waiting.append(operation)
        if not self._out or (len(waiting) >= WORTHWHILE and self._out < MOST_CALLS):
            self._out += 1
            self._worker.process.submit(self._call)

    def _call(self) -> tuple[float, Callable[[], None]]:
        waiting = self._waiting
        if not waiting:
            self._out -= 1
            return 0.0, lambda: None
        share = len(waiting) if self._fleet.plan.is_cluster else max(WORTHWHILE, (len(waiting) + 1) // 2)
        members = [waiting.popleft() for _ in range(min(MOST, share, len(waiting)))]
        self._last_was_lone = len(members) == 1
        return self._send(members)

    def _conclude(self, members: list[SlotOperation]) -> None:
        super()._conclude(members)
        if self._waiting:
            self._worker.process.submit(self._call)
        else:
            self._out -= 1


class SimulatedWorker:
    """A process of the application."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        self.fleet = fleet
        self.process = Process(fleet.clock, machine, fleet.client)
        self._callers: dict[int, SimulatedCalls] = {}
        fleet.clock.after(fleet.pause(fleet.rate), self._arrive, None)
        if fleet.shares.reports:
            fleet.clock.after(fleet.random.uniform(0, REPORTED_EVERY * 1e6), self._report, None)

    def _arrive(self, _: None) -> None:
        fleet = self.fleet
        fleet.clock.after(fleet.pause(fleet.rate), self._arrive, None)
        fleet.arrived += 1
        request = SimulatedRequest(fleet.clock.now)
        fleet.plan_rounds(request)
        decision = fleet.client.decision if request.rounds else fleet.client.decision / 4
        self.process.submit(lambda: (decision, partial(self._ask, request)))

    def _report(self, _: None) -> None:
        """Send the sums of the clients since the last report."""
        fleet = self.fleet
        fleet.clock.after(REPORTED_EVERY * 1e6, self._report, None)
        self.send_apart(int(fleet.shares.reports + fleet.random.random()))

    def send_apart(self, clients: int) -> None:
        """Send the operations of some clients that no request waits for."""
        request = SimulatedRequest(self.fleet.clock.now)
        request.rounds = [[each for _ in range(clients) for each in self.fleet.operations(request)]]
        request.decisive = -1
        self._ask(request)

    def _ask(self, request: SimulatedRequest) -> None:
        if request.made == request.decisive:
            self.fleet.decide(request)
            if application := self.fleet.plan.application_cpu:
                self.process.submit(lambda: (application, lambda: None))
                self.fleet.application_us += application
        if request.made < len(request.rounds):
            operations = request.rounds[request.made]
            request.made += 1
            request.left = len(operations)
            for each in operations:
                self._caller(each[1]).join(each, len(operations) == 1)

    def conclude(self, request: SimulatedRequest) -> None:
        request.left -= 1
        if not request.left:
            self._ask(request)

    def _caller(self, slot: int) -> SimulatedCalls:
        fleet = self.fleet
        node = slot * fleet.plan.nodes // SLOTS
        if node not in self._callers:
            kind = SimulatedCalls if fleet.plan.threads else BatchingCalls
            self._callers[node] = kind(self, fleet.nodes[node % len(fleet.nodes)])
        return self._callers[node]


class SimulatedFleet:
    """The part of the workers and servers that is simulated."""

    def __init__(self, plan: Deployment, measured: MeasuredCosts, seed: int, requests: int) -> None:
        self.plan, self.measured = plan, measured
        self.client = measured.blocking if plan.threads else measured.client
        self.random = random.Random(seed)  # noqa: S311 - a simulation that can be repeated
        self.shares = CallShares(plan)
        self.rate = plan.rate / plan.workers / 1e6
        self.clock = Clock()
        self.span = min(_SPANS[1], max(_SPANS[0], requests / plan.rate * 1e6))
        part = min(1.0, requests / (plan.rate * self.span / 1e6))
        nodes = max(1, round(plan.nodes * part))
        self.part = nodes / plan.nodes
        workers = max(1, round(plan.workers * self.part))
        machines = max(1, round(plan.machines * workers / plan.workers))
        hosts = [Machine(plan.cores) for _ in range(machines)]
        self.nodes = [SimulatedServer(self, hosts[0] if plan.is_shared else Machine(None)) for _ in range(nodes)]
        self.workers = [SimulatedWorker(self, hosts[i * machines // workers]) for i in range(workers)]
        self._start_counting()
        if plan.held_slots:
            self._renew(None)

    def _start_counting(self) -> None:
        self.arrived = self.decided = 0
        self.application_us = 0.0
        self.parts = [0, 0, 0, 0]
        self.latencies: list[float] = []
        for process in [each.process for each in self.nodes] + [each.process for each in self.workers]:
            process.busy = 0.0

    def run(self) -> None:
        self.clock.run(self.span * _WARM_UP)
        self._start_counting()
        self.clock.run(self.span * (1 + _WARM_UP))

    def pause(self, rate: float) -> float:
        return self.random.expovariate(rate)

    def deliver(self, receive: Callable[..., None], message: object) -> None:
        self.clock.after(self.plan.rtt / 2, receive, message)

    def count(self, parts: tuple[int, int, int, int]) -> None:
        self.parts = [total + part for total, part in zip(self.parts, parts, strict=True)]

    def decide(self, request: SimulatedRequest) -> None:
        self.decided += 1
        self.latencies.append(self.clock.now - request.arrived)

    def operations(self, request: SimulatedRequest) -> list[SlotOperation]:
        """Return the operations of a client: one, or with different hash tags one for each limit."""
        plan, client = self.plan, self.random.randrange(self.plan.clients)
        if plan.has_tags or not plan.is_cluster:
            return [SlotOperation(request, client * 7_919 % SLOTS, plan.limits)]
        return [SlotOperation(request, (client + i * 104_729) * 7_919 % SLOTS, 1) for i in range(plan.limits)]

    def plan_rounds(self, request: SimulatedRequest) -> None:
        chance, shares = self.random.random, self.shares
        if chance() < shares.asked:
            operations = self.operations(request)
            if chance() < shares.returned:
                request.rounds.append(self.operations(request))
            request.rounds.append(operations)
            if len(operations) > 1 and chance() < shares.rejected:
                # One slot rejects. The others are refunded and read again.
                request.rounds.append([each for each in operations[1:] for _ in range(2)])
            if chance() < shares.announced:
                operations.append(SlotOperation(request, 0, 1))
        request.decisive = len(request.rounds)
        if chance() < shares.second:
            request.rounds.append(self.operations(request))

    def _renew(self, _: None) -> None:
        """Renew a slot of one of the workers, in a call of its own."""
        rate = self.plan.held_slots * self.part / RENEWED_EVERY / 1e6
        self.clock.after(self.pause(rate), self._renew, None)
        self.random.choice(self.workers).send_apart(1)


def simulate(plan: Deployment, measured: MeasuredCosts, seed: int = 1, requests: int = _REQUESTS) -> Result:
    """Simulate about ``requests`` of the requests of a deployment, and return the numbers of the whole fleet."""
    fleet = SimulatedFleet(plan, measured, seed, requests)
    fleet.run()
    span = fleet.span / 1e6
    messages, commands, operations, hits = (count / span / fleet.part for count in fleet.parts)
    latencies = sorted(fleet.latencies) or [0.0]
    servers = [each.process.busy / fleet.span + measured.server.idle / 1e6 for each in fleet.nodes]
    return Result(
        requests=fleet.arrived / span / fleet.part,
        decided=fleet.decided / max(1, fleet.arrived),
        messages=messages,
        commands=commands,
        operations=operations,
        hits=hits,
        node_cpu=sum(servers) / len(servers),
        busiest_node_cpu=max(servers),
        worker_cpu=(sum(each.process.busy for each in fleet.workers) - fleet.application_us)
        / len(fleet.workers)
        / fleet.span,
        sent=measured.sent.of(messages, commands, operations, hits),
        received=measured.received.of(messages, commands, operations, hits),
        mean=sum(latencies) / len(latencies),
        p50=latencies[len(latencies) // 2],
        p99=latencies[int(len(latencies) * 0.99)],
    )
