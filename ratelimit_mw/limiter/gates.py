"""``Gates``: the limits that follow the load of this process, in front of the store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ..clock import SECOND, Clock, machine, now_us
from ..decision import SHED, Decision, Hit, Limit, PlaceCost, Tuning, Verdict
from ..forksafe import CHANCE, create_lock
from ..quota import Quota
from .adaptive import Aimd, Demand, Health

_MAX_KEYS: Final = 10_000
_LONGEST_RETRY: Final = 5
"""The longest wait of a rejection, in seconds. Waits are random, so that clients do not come back at once."""
_LONGEST_QUEUE: Final = 60 * SECOND
"""A request that has waited longer before this process has a proxy with a wrong clock."""
_DROPPED: Final = (503, 504, None)
"""The statuses of requests that the service has dropped. None is a request that it has cancelled."""
_NO_TIME: Final = 101
"""The status of a request whose time does not count, such as a WebSocket, which may stay open for long."""
_with_amount: Final = lru_cache(1_000)(Limit.with_amount)


class TimedCost(PlaceCost):
    """The cost of a hit on an adaptive limit that follows the response to the request."""

    gates: Gates
    state: Aimd
    began: int
    has_responded = False

    def respond(self, status: int | None) -> None:
        """Note the status of the response, once."""
        if not self.has_responded:
            self.has_responded = True
            if status != _NO_TIME:
                self.gates.respond(self, self.is_drop(status))

    def is_drop(self, status: int | None) -> bool:
        """Return whether the service has failed."""
        return status is None or status >= 500

    def leave(self) -> None:
        """End the request."""

    def __reduce__(self) -> Any:
        """Pickle the cost alone, because the request runs in this process."""
        return _cost, (self.limit, int(self))


class RequestPlace(TimedCost):
    """The place of a request in flight, which ends with the request.

    A place that is never left, because the application has dropped its verdict, ends with this object.
    """

    has_left = False

    def is_drop(self, status: int | None) -> bool:
        """Return whether the service has dropped the request."""
        return status in _DROPPED

    def leave(self) -> None:
        """End the request."""
        if not self.has_left:
            self.has_left = True
            self.gates.leave(self.state)

    def __del__(self) -> None:
        if not self.has_left:  # no lock here: the garbage collector may run while it is held
            self.gates.lost.append(self.state)


class Gates:
    """The adaptive limits of a process, one for each key.

    Args:
        clock: The clock of the limiter. By default, the time of the machine that never goes back.

    Attributes:
        lost: The limits of places whose verdict was dropped.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or _monotonic_us
        self._states: dict[tuple[str, Quota, int], Aimd] = {}
        self._rates: dict[tuple[str, Tuning], Demand | Health] = {}
        self._lock = create_lock(self, "_lock", threading.Lock, Gates._start_over)
        self.lost: deque[Aimd] = deque()

    def _start_over(self, _intact: bool) -> None:
        """In a forked child: its parent has the requests in flight."""
        self._states, self.lost = {}, deque()

    def begin(self, request_start: Any) -> int:
        """Return when a request began, by the clock of the limits.

        Args:
            request_start: The time when a proxy received the request, in seconds since 1970; None if not known.
        """
        queued = int(now_us() - request_start * SECOND) if isinstance(request_start, float) else 0
        return self._clock() - (queued if 0 < queued < _LONGEST_QUEUE else 0)

    def enter(self, hits: Iterable[Hit], began: int) -> list[Decision]:
        """Decide the adaptive limits among some hits. If none of them rejects, the request takes a place of each.

        Args:
            hits: The hits of a request.
            began: When the request began.
        """
        now, at = self._clock(), now_us()
        decisions: list[Decision] = []
        states: list[Aimd] = []
        with self._lock:
            while self.lost:
                self.lost.popleft().leave()
            for hit in hits:
                if hit.limit.sheds:
                    states.append(state := self._find(hit))
                    decisions.append(_decide(state, hit, now, at))
            if all(decision.allowed or decision.shadow for decision in decisions):
                for decision, state in zip(decisions, states, strict=True):
                    state.enter(now)
                    self._time(decision, RequestPlace, state, began)
        return decisions

    def tuned(self, hits: Iterable[Hit]) -> list[Hit]:
        """Return hits whose rates have their current amounts."""
        now = self._clock()
        with self._lock:
            return [
                hit._replace(limit=_with_amount(hit.limit, self._rate(hit.key, tuning).amount(now)))
                if (tuning := hit.limit.tuning)
                else hit
                for hit in hits
            ]

    def note(self, verdict: Verdict, began: int) -> None:
        """Note a verdict of the store, for the rates that follow the load.

        Args:
            verdict: The verdict.
            began: When the request began.
        """
        now = self._clock()
        with self._lock:
            for decision in verdict.decisions:
                limit, key, _ = decision.hit
                if limit.tuning is not None and not decision.why:
                    rate = self._rate(key, limit.tuning)
                    rate.note(now, not (decision.allowed and decision.remaining))
                    if verdict.allowed and isinstance(rate, Health):
                        self._time(decision, TimedCost, rate, began + round(verdict.delay * SECOND))

    def _time(self, decision: Decision, kind: type[TimedCost], state: Aimd, began: int) -> None:
        limit, key, cost = decision.hit
        timed = kind(cost)
        timed.gates, timed.state, timed.began, timed.limit = self, state, began, decision.limit
        decision.hit = (limit, key, timed)

    def _rate(self, key: str, tuning: Tuning) -> Demand | Health:
        known = key, tuning
        if (rate := self._rates.get(known)) is None:
            if len(self._rates) >= _MAX_KEYS:  # clients may choose their keys
                del self._rates[next(iter(self._rates))]
            by, bounds, target = tuning
            kind, unit = (Health, target) if by == "health" else (Demand, bounds.period_us)
            rate = self._rates[known] = kind(bounds.floor or 1, bounds.amount, unit)
        return rate

    def respond(self, place: TimedCost, dropped: bool) -> None:
        """Give a limit the time of a request."""
        with self._lock:
            now = self._clock()
            place.state.respond(now, now - place.began, dropped)

    def leave(self, state: Aimd) -> None:
        """End a request of a limit."""
        with self._lock:
            state.leave()

    def states(self) -> dict[str, Aimd]:
        """Return the limits by their keys."""
        with self._lock:
            return {key: state for (key, _, _), state in self._states.items()}

    def _find(self, hit: Hit) -> Aimd:
        limit = hit.limit
        key = (hit.key, limit.quota, limit.target)
        if (state := self._states.get(key)) is None:
            if len(self._states) >= _MAX_KEYS:  # clients may choose their keys
                self._states = {each: state for each, state in self._states.items() if state.in_flight}
            state = self._states[key] = Aimd(limit.quota.floor or 1, limit.quota.amount, limit.target)
        return state


def _monotonic_us() -> int:
    return machine.monotonic_ns() // 1000


def _cost(limit: int, number: int = 1) -> PlaceCost:
    cost = PlaceCost(number)
    cost.limit = limit
    return cost


def _decide(state: Aimd, hit: Hit, now: int, at: int) -> Decision:
    limit, key, _ = hit
    share = 100 - limit.held_percent
    allowed = state.allows(now, share)
    cost = _cost(state.room(share))
    if allowed:
        return Decision(True, max(0, cost.limit - state.in_flight - 1), 0, 0, at, 0, (limit, key, cost))
    return Decision(False, 0, CHANCE.randint(1, _LONGEST_RETRY) * SECOND, 0, at, 0, (limit, key, cost), SHED)


def respond(verdict: Verdict, status: int | None) -> None:
    """Note the status of the response to a request, for the adaptive limits of its verdict."""
    for decision in verdict.decisions:
        if isinstance(decision.hit[2], TimedCost):
            decision.hit[2].respond(status)


def postpone(verdict: Verdict, seconds: float) -> None:
    """Leave out the time for which a request waits because of its other limits: the service is not slow then."""
    for decision in verdict.decisions:
        decision.hit[2].began += round(seconds * SECOND)  # type: ignore[attr-defined]


def leave(verdict: Verdict, status: int | None = _NO_TIME) -> None:
    """End a request for the adaptive limits of its verdict. A status that is not noted yet is noted now."""
    for decision in verdict.decisions:
        if isinstance(decision.hit[2], TimedCost):
            decision.hit[2].respond(status)
            decision.hit[2].leave()
