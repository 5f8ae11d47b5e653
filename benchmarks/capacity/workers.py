"""Simulated workers. A worker has the batches of stores/redis/batch.py, or threads without batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.capacity.processes import Machine, Process

if TYPE_CHECKING:
    from benchmarks.capacity.simulation import SimulatedFleet

SLOTS: Final = 16_384
MOST: Final = 256  # A test compares these with the store.
WORTHWHILE: Final = 32
MOST_CALLS: Final = 4


class SlotOperation(NamedTuple):
    """The part of a request in one slot."""

    request: SimulatedRequest
    slot: int
    hits: int


class SimulatedRequest:
    """Rounds of operations. None is the decision."""

    __slots__ = ("arrived", "left", "rounds")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.rounds: Iterator[list[SlotOperation] | None] = iter(())
        self.left = 0
        """Operations of this round that have no reply."""


class SimulatedCalls:
    """The calls of a worker to a server: one for each operation of a thread, or the batches of ``Batcher``."""

    def __init__(self, worker: SimulatedWorker, node: Process) -> None:
        self._worker = worker
        self._fleet = worker.fleet
        self._node = node
        self._waiting: deque[SlotOperation] = deque()
        self._out = 0
        self._last_was_lone = True

    def join(self, operation: SlotOperation, is_alone: bool) -> None:
        waiting, is_idle = self._waiting, not self._out
        if self._fleet.plan.threads or (is_alone and is_idle and self._last_was_lone and not waiting):
            self._out += 1
            self._worker.submit(partial(self._send, [operation]), is_first=is_alone)
            return
        waiting.append(operation)
        if is_idle or (len(waiting) >= WORTHWHILE and self._out < MOST_CALLS):
            self._out += 1
            self._worker.submit(self._send_waiting)

    def _send_waiting(self) -> tuple[float, Callable[[], None]]:
        waiting = self._waiting
        if not waiting:
            self._out -= 1
            return 0.0, lambda: None
        share = len(waiting) if self._fleet.plan.is_cluster else max(WORTHWHILE, (len(waiting) + 1) // 2)
        members = [waiting.popleft() for _ in range(min(MOST, share, len(waiting)))]
        self._last_was_lone = len(members) == 1
        return self._send(members)

    def _send(self, members: list[SlotOperation]) -> tuple[float, Callable[[], None]]:
        fleet, one_way = self._fleet, self._fleet.plan.rtt / 2
        commands = len({each[1] for each in members}) if fleet.plan.is_cluster else 1
        parts = (1, commands, len(members), sum([each[2] for each in members]))
        fleet.parts = [total + part for total, part in zip(fleet.parts, parts, strict=True)]
        cpu = fleet.measured.server.of(*parts)

        def reply() -> None:
            jitter = fleet.random.choice(fleet.measured.jitter)
            fleet.clock.after(max(0.0, one_way + jitter), self._receive, members)

        return fleet.client.of(*parts), partial(fleet.clock.after, one_way, self._node.submit, lambda: (cpu, reply))

    def _receive(self, members: list[SlotOperation]) -> None:
        self._worker.submit(lambda: (0.0, partial(self._conclude, members)))

    def _conclude(self, members: list[SlotOperation]) -> None:
        for request, _, _ in members:
            request.left -= 1
            if not request.left:
                self._worker.proceed(request)
        if self._waiting:
            self._worker.submit(self._send_waiting)
        else:
            self._out -= 1


class SimulatedWorker(Process):
    """A process of the application."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        super().__init__(fleet.clock, machine, fleet.client)
        self.fleet = fleet
        self._calls: dict[int, SimulatedCalls] = {}
        self._await_request()

    def _await_request(self) -> None:
        fleet = self.fleet
        fleet.clock.after(fleet.random.expovariate(fleet.plan.rate / fleet.plan.workers / 1e6), self._arrive)

    def _arrive(self) -> None:
        fleet = self.fleet
        self._await_request()
        fleet.arrived += 1
        request = SimulatedRequest(fleet.clock.now)
        rounds = fleet.rounds(request)
        request.rounds = iter(rounds)
        decision = fleet.client.decision if any(rounds) else fleet.measured.local
        self.submit(lambda: (decision, partial(self.proceed, request)))

    def proceed(self, request: SimulatedRequest) -> None:
        """Send the next round of a request."""
        fleet = self.fleet
        for operations in request.rounds:
            if operations is not None:
                request.left = len(operations)
                for each in operations:
                    self._calls_to(each.slot).join(each, len(operations) == 1)
                return
            fleet.decided += 1
            fleet.latencies.append(fleet.clock.now - request.arrived)
            if application := fleet.plan.application_cpu:
                self.submit(lambda: (application, lambda: None))
                fleet.application_us += application

    def _calls_to(self, slot: int) -> SimulatedCalls:
        nodes = self.fleet.nodes
        node = slot * self.fleet.plan.nodes // SLOTS
        if node not in self._calls:
            self._calls[node] = SimulatedCalls(self, nodes[node % len(nodes)])
        return self._calls[node]
