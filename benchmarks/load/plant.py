"""A service in simulated time: some servers, one queue, and clients that give up. The limits are the real ones.

The service works on requests whose client has given up, as most services do. That is why it collapses without a limit.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from ratelimit_mw.clock import SECOND
from ratelimit_mw.limiter.adaptive import Aimd

FULL: Final = ((0.0, 1.0),)
SHARES: Final = {"critical": 100, "normal": 90, "background": 60}


@dataclass(frozen=True)
class Plant:
    """What is simulated.

    Args:
        arrivals: The requests per second of each class.
        servers: The number of requests that are served at a time.
        service: The mean time of a request, in seconds; times are exponential.
        patience: The seconds after which a client gives up.
        seconds: The length of the run.
        capacity: The share of the servers that work from each second on.
        seed: The seed of the random numbers.
    """

    arrivals: Mapping[str, float]
    servers: int = 20
    service: float = 0.05
    patience: float = 1.0
    seconds: int = 180
    capacity: Sequence[tuple[float, float]] = FULL
    seed: int = 0

    def working(self, at: float) -> int:
        """Return how many servers work at a time."""
        share = next(share for begin, share in reversed(self.capacity) if at >= begin)
        return max(0, round(self.servers * share))


@dataclass
class Second:
    """What happened in one second, by class where it says so."""

    arrived: dict[str, int] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    """Requests that ended while their client waited."""
    times: list[float] = field(default_factory=list)
    """The seconds that the admitted requests took, at most the patience of their client."""
    limit: float = 0.0
    in_flight: int = 0

    @property
    def goodput(self) -> int:
        """The number of requests that were served in time."""
        return sum(self.served.values())


def simulate(plant: Plant, limit: Aimd | None) -> list[Second]:
    """Return each second of a run, with a limit or without one."""
    return _Run(plant, limit).seconds


@dataclass
class _Request:
    name: str
    began: float
    has_client: bool = True


class _Run:
    def __init__(self, plant: Plant, limit: Aimd | None) -> None:
        self.seconds = [Second() for _ in range(plant.seconds)]
        self._plant, self._limit, self._clock = plant, limit, 0.0
        self._chance, self._numbers = random.Random(plant.seed), count()
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._waiting: deque[_Request] = deque()
        self._busy = 0
        for name in plant.arrivals:
            self._in(0.0, self._arrive, name)
        self._in(0.0, self._measure, self.seconds)
        while self._events[0][0] < plant.seconds:
            self._clock, _, what, argument = heapq.heappop(self._events)
            what(argument)

    @property
    def _second(self) -> Second:
        return self.seconds[int(self._clock)]

    @property
    def _now(self) -> int:
        return int(self._clock * SECOND)

    def _in(self, seconds: float, what: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (self._clock + seconds, next(self._numbers), what, argument))

    def _arrive(self, name: str) -> None:
        self._in(self._chance.expovariate(self._plant.arrivals[name]), self._arrive, name)
        arrived = self._second.arrived
        arrived[name] = arrived.get(name, 0) + 1
        if self._limit is not None:
            if not self._limit.allows(self._now, SHARES[name]):
                return
            self._limit.enter(self._now)
        request = _Request(name, self._clock)
        self._waiting.append(request)
        self._in(self._plant.patience, self._give_up, request)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._busy < self._plant.working(self._clock):
            self._busy += 1
            self._in(self._chance.expovariate(1 / self._plant.service), self._end, self._waiting.popleft())

    def _give_up(self, request: _Request) -> None:
        if request.has_client:
            request.has_client = False
            self._second.times.append(self._plant.patience)

    def _end(self, request: _Request) -> None:
        self._busy -= 1
        took = self._clock - request.began
        if request.has_client:
            request.has_client = False
            served = self._second.served
            served[request.name] = served.get(request.name, 0) + 1
            self._second.times.append(took)
        if self._limit is not None:
            self._limit.respond(self._now, int(took * SECOND))
            self._limit.leave()
        self._serve()

    def _measure(self, seconds: list[Second]) -> None:
        if self._limit is not None:
            self._second.limit, self._second.in_flight = self._limit.limit, self._limit.in_flight
        self._serve()  # servers may have come back
        self._in(1.0, self._measure, seconds)
