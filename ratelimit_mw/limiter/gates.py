"""``Gates``: the limits of requests in flight that follow the load of this process, in front of the store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from ..clock import SECOND, Clock, machine, now_us
from ..decision import SHED, Decision, Hit, PlaceCost, Verdict
from ..forksafe import CHANCE, create_lock
from ..quota import Quota
from .adaptive import Aimd

_MAX_KEYS: Final = 10_000
_LONGEST_RETRY: Final = 5
"""The longest wait of a rejection, in seconds. Waits are random, so that clients do not come back at once."""
_LONGEST_QUEUE: Final = 60 * SECOND
"""A request that has waited longer before this process has a proxy with a wrong clock."""
_DROPPED: Final = (503, 504, None)
"""The statuses of requests that the service has dropped. None is a request that it has cancelled."""
_NO_TIME: Final = 101
"""The status of a request whose time does not count, such as a WebSocket, which may stay open for long."""


class RequestPlace(PlaceCost):
    """The cost of a hit on an adaptive limit: the place of a request in flight, which ends with the request.

    A place that is never left, because the application has dropped its verdict, ends with this object.
    """

    gates: Gates
    state: Aimd
    began: int
    has_responded = False
    has_left = False

    def respond(self, status: int | None) -> None:
        """Note the status of the response, once."""
        if not (self.has_responded or self.has_left):
            self.has_responded = True
            if status != _NO_TIME:
                self.gates.respond(self, status in _DROPPED)

    def leave(self) -> None:
        """End the request."""
        if not self.has_left:
            self.has_left = True
            self.gates.leave(self.state)

    def __reduce__(self) -> Any:
        """Pickle the cost alone, because the request runs in this process."""
        return _cost, (self.limit,)

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
        self._lock = create_lock(self, "_lock", threading.Lock, Gates._start_over)
        self.lost: deque[Aimd] = deque()

    def _start_over(self, _intact: bool) -> None:
        """In a forked child: its parent has the requests in flight."""
        self._states, self.lost = {}, deque()

    def enter(self, hits: Iterable[Hit], request_start: Any = None) -> list[Decision]:
        """Decide the adaptive limits among some hits. If none of them rejects, the request takes a place of each.

        Args:
            hits: The hits of a request.
            request_start: The time when a proxy received the request, in seconds since 1970; None if not known.
        """
        now, at = self._clock(), now_us()
        queued = int(at - request_start * SECOND) if isinstance(request_start, float) else 0
        began = now - (queued if 0 < queued < _LONGEST_QUEUE else 0)
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
                    place = RequestPlace(1)
                    place.gates, place.state, place.began, place.limit = self, state, began, decision.limit
                    decision.hit = (*decision.hit[:2], place)
        return decisions

    def respond(self, place: RequestPlace, dropped: bool) -> None:
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


def _cost(limit: int) -> PlaceCost:
    cost = PlaceCost(1)
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
        if isinstance(decision.hit[2], RequestPlace):
            decision.hit[2].respond(status)


def postpone(verdict: Verdict, seconds: float) -> None:
    """Leave out the time for which a request waits because of its other limits: the service is not slow then."""
    for decision in verdict.decisions:
        decision.hit[2].began += round(seconds * SECOND)  # type: ignore[attr-defined]


def leave(verdict: Verdict, status: int | None = _NO_TIME) -> None:
    """End a request for the adaptive limits of its verdict. A status that is not noted yet is noted now."""
    for decision in verdict.decisions:
        if isinstance(decision.hit[2], RequestPlace):
            decision.hit[2].respond(status)
            decision.hit[2].leave()
