"""A service in simulated time: some servers, one queue, and clients that give up. A real limiter decides the requests.

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

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.clock import SECOND

FULL: Final = ((0.0, 1.0),)
_START: Final = 1_700_000_000 * SECOND


@dataclass(frozen=True)
class Plant:
    """The service and its clients in a simulation.

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
    """The counts of one second, some of them by class."""

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


def simulate(plant: Plant, limits: str = "", **options: Any) -> list[Second]:
    """Return each second of a run.

    Args:
        plant: The service.
        limits: The limits of its rule, such as ``"adaptive 5..200 concurrent"``. Default: none.
        **options: Other options of the rule, such as ``target``.
    """
    rules = [Rule(name="service", limits=limits, key=[], **options)] if limits else []
    return _Run(plant, rules).seconds


@dataclass
class _Request:
    name: str
    began: float
    verdict: Any
    has_client: bool = True


class _Run:
    def __init__(self, plant: Plant, rules: Sequence[Rule]) -> None:
        self.seconds = [Second() for _ in range(plant.seconds)]
        self._plant, self._clock = plant, 0.0
        self._limiter = Limiter(rules, clock=lambda: _START + int(self._clock * SECOND))
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

    def _in(self, seconds: float, what: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (self._clock + seconds, next(self._numbers), what, argument))

    def _arrive(self, name: str) -> None:
        self._in(self._chance.expovariate(self._plant.arrivals[name]), self._arrive, name)
        arrived = self._second.arrived
        arrived[name] = arrived.get(name, 0) + 1
        verdict = self._limiter.hit({"priority": name})
        if verdict.allowed:
            request = _Request(name, self._clock, verdict)
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
        if request.has_client:
            request.has_client = False
            served = self._second.served
            served[request.name] = served.get(request.name, 0) + 1
            self._second.times.append(self._clock - request.began)
        self._limiter.conclude(request.verdict, 200)
        self._serve()

    def _measure(self, seconds: list[Second]) -> None:
        self._second.in_flight = self._busy + len(self._waiting)
        for state in self._limiter.adaptive.states().values():
            self._second.limit = state.limit
        self._serve()  # servers may have come back
        self._in(1.0, self._measure, seconds)
