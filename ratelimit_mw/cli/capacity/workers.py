"""Simulated workers and servers. A worker has the batches of stores/redis/batch.py, or threads without batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .calls import REPORTED_EVERY
from .processes import Machine, Process

if TYPE_CHECKING:
    from .simulation import SimulatedFleet

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
    """Rounds of operations. The decision is known after ``decisive`` of them."""

    __slots__ = ("arrived", "decisive", "left", "made", "rounds")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.rounds: list[list[SlotOperation]] = []
        self.decisive = self.made = self.left = 0


class SimulatedServer:
    """A server. It runs the messages of the workers one after another."""

    def __init__(self, fleet: SimulatedFleet, machine: Machine) -> None:
        self.process = Process(fleet.clock, machine, fleet.measured.server)
        self._fleet = fleet

    def receive(self, message: tuple[SimulatedCalls, list[SlotOperation], float]) -> None:
        caller, members, cpu = message
        self.process.submit(lambda: (cpu, partial(self._fleet.reply, caller.receive, members)))


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
    """The calls of an event loop, in batches as by ``Batcher``, or by ``NodeBatcher`` for a cluster."""

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
        decision = fleet.client.decision if request.rounds else fleet.measured.local
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
