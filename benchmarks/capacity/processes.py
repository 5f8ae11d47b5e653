"""Events in time, processes that run jobs one after another, and machines with too few cores for their processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from benchmarks.capacity.costs import Costs

_SLICE: Final = 1_000.0  # microseconds until a process leaves its core to another one

Job = Callable[[], tuple[float, Callable[[], None]]]
"""Starts work. Returns its CPU, and the function to call when it is done."""


class Clock:
    """The time in microseconds, and the events to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._events, (self.now + delay, self._count, call, arguments))

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, arguments = heappop(events)
            call(*arguments)
        self.now = until


class Machine:
    """Some cores, or one for each process, and the processes that wait for one."""

    def __init__(self, cores: int | None) -> None:
        self._free = inf if cores is None else cores
        self.waiting: deque[Process] = deque()

    def enter(self, process: Process) -> None:
        if self._free:
            self._free -= 1
            process.start()
        else:
            self.waiting.append(process)

    def leave(self) -> None:
        if self.waiting:
            self.waiting.popleft().start()
        else:
            self._free += 1


class Process:
    """Runs jobs in turn."""

    def __init__(self, clock: Clock, machine: Machine, costs: Costs) -> None:
        self.clock, self.costs, self._machine = clock, costs, machine
        self.busy = 0.0
        """CPU so far, in microseconds."""
        self._jobs: deque[Job] = deque()
        self._runs = False
        self._entered = self._slept = clock.now

    def submit(self, job: Job, is_first: bool = False) -> None:
        self._jobs.insert(0 if is_first else len(self._jobs), job)
        if not self._runs:
            self._runs = True
            self._machine.enter(self)

    def start(self) -> None:
        self._entered = now = self.clock.now
        self._next(self.costs.wake(now - self._slept))

    def _next(self, extra: float = 0.0) -> None:
        cost, done = self._jobs.popleft()()
        cost += extra
        self.busy += cost
        self.clock.after(cost, self._end, done)

    def _end(self, done: Callable[[], None]) -> None:
        done()
        self._slept = self.clock.now
        if not self._jobs:
            self._runs = False
            self._machine.leave()
        elif self._machine.waiting and self.clock.now - self._entered > _SLICE:
            self._machine.enter(self)
            self._machine.leave()
        else:
            self._next()
