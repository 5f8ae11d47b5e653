"""``Gates``: the limits that follow the load of this process, in front of the store."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple, cast

from ..clock import SECOND, Clock, machine, now_us
from ..decision import SHED, AdaptiveDecision, Decision, Hit, Limit, Tuning, Verdict, rule_of
from ..forksafe import CHANCE, create_lock
from ..keys.features import Features
from ..rules.plan import REQUEST_START
from .adaptive import Aimd, Health, start

_MAX_KEYS: Final = 5_000
"""So many keys are kept, and as many older ones."""
_LONGEST_RETRY: Final = 5
"""The longest wait of a rejection, in seconds. Waits are random, so that clients do not come back at once."""
_LONGEST_QUEUE: Final = 60 * SECOND
"""A request that has waited longer before this process has a proxy with a wrong clock."""
_NO_TIME: Final = 101
"""The status of a request whose time does not count, such as a WebSocket, which may stay open for long."""
EVERY: Final = 10 * SECOND
"""The time between two levels of the history."""
_SAMPLES: Final = 360
_LOOK_EVERY: Final = 0.05  # seconds between two looks at the lag of an event loop
_with_amount: Final = lru_cache(1_000)(Limit.with_amount)


class GatePlace:
    """A request in flight, at one adaptive limit.

    A place that is never left, because the application has dropped its verdict, ends with this object.
    """

    __slots__ = ("_gates", "_has_left", "_has_responded", "_state", "began")

    def __init__(self, gates: Gates, state: Aimd, began: int) -> None:
        self._gates, self._state, self.began = gates, state, began
        self._has_left = self._has_responded = False

    def respond(self, status: int | None) -> None:
        """Note the status of the response, once."""
        if not self._has_responded:
            self._has_responded = True
            if status != _NO_TIME:
                self._gates.respond(self._state, self.began, status)

    def leave(self, status: int | None) -> None:
        """End the request. A status that is not noted yet is noted now."""
        self.respond(status)
        if not self._has_left:
            self._has_left = True
            self._gates.leave(self._state)

    def __reduce__(self) -> Any:
        """Pickle nothing, because the request runs in this process."""
        return type(None), ()

    def __del__(self) -> None:
        if not self._has_left:  # no lock here: the garbage collector may run while it is held
            self._gates.lost.append(self._state)


class Lag(threading.local):
    """How late the event loop of this thread runs its callbacks: for so long, a request has waited before it begins.

    It is measured while requests begin.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _due = _late = 0.0
    _is_used = False

    def read(self) -> int:
        """Return the lag in microseconds; 0 without an event loop."""
        loop = asyncio._get_running_loop()
        if loop is None:
            return 0
        self._is_used = True
        if loop is not self._loop:
            self._loop, self._late = loop, 0.0
            self._look_later(loop)
        return int(max(self._late, loop.time() - self._due) * SECOND)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _LOOK_EVERY
        loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late = loop.time() - self._due
        if self._is_used:
            self._is_used = False
            self._look_later(loop)
        else:
            self._loop = None


class Level(NamedTuple):
    """An adaptive limit at a moment: its amount, the requests in flight, and why it has changed last."""

    limit: int
    in_flight: int
    reason: str


class Gates:
    """The adaptive limits of a process, one for each key.

    Without a clock of the limiter, they follow the time of the machine that never goes back.

    Attributes:
        lost: The limits of places whose verdict was dropped.
        history: The levels of each rule in the last hour, with their times in microseconds since 1970.
    """

    def __init__(self, clock: Clock | None, names: Callable[[], Container[str]]) -> None:
        self._clock, self._names = clock or _monotonic_us, names
        self._lag = Lag() if clock is None else None
        self._lock = create_lock(self, "_lock", threading.Lock, Gates.start_over)
        self.start_over()

    def start_over(self, _intact: bool = True) -> None:
        """Forget all limits. In a forked child, its parent has the requests in flight."""
        self._states: dict[tuple[str, Tuning], Any] = {}
        self._older: dict[tuple[str, Tuning], Any] = {}
        self.lost: deque[Aimd] = deque()
        self.history: dict[str, deque[tuple[int, Level]]] = {}
        self._sample_at = 0
        self._chance = Random(CHANCE.random()).random  # noqa: S311 - a wait is no secret

    def enter(self, hits: Sequence[Hit], features: Features) -> Verdict:
        """Decide adaptive limits of requests in flight. If none of them rejects, the request takes a place of each."""
        now, at, allowed = self._clock(), now_us(), True
        decisions: list[AdaptiveDecision] = []
        states: list[Aimd] = []
        with self._lock:
            while self.lost:
                self.lost.popleft().leave()
            for hit in hits:
                limit, key, _ = hit
                state = self._find(key, limit)
                room, most = state.room(now, 100 - limit.held_percent)
                states.append(state)
                if room:
                    decisions.append(AdaptiveDecision(True, room - 1, 0, 0, at, 0, hit, "", most, state.reason))
                else:
                    allowed = allowed and limit.shadow
                    wait = SECOND + int(self._chance() * _LONGEST_RETRY) * SECOND
                    decisions.append(AdaptiveDecision(False, 0, wait, 0, at, 0, hit, SHED, most, state.reason))
            if allowed:
                for state in states:
                    state.enter(now)
        if now >= self._sample_at:
            self._sample(now)
        if allowed and states:
            began = now - self._waited(features)
            for decision, state in zip(decisions, states, strict=True):
                decision.place = GatePlace(self, state, began)
        return Verdict(decisions, allowed)

    def _waited(self, features: Features) -> int:
        """Return how long a request has waited in a proxy and for the event loop, in microseconds."""
        waited = 0 if self._lag is None else self._lag.read()
        if type(received := features.get(REQUEST_START)) is float:
            queued = int(now_us() - received * SECOND)
            waited += queued if 0 < queued < _LONGEST_QUEUE else 0
        return waited

    def tuned(self, hits: Iterable[Hit]) -> list[Hit]:
        """Return hits whose rates have their current amounts."""
        now = self._clock()
        if now >= self._sample_at:
            self._sample(now)
        with self._lock:
            return [
                hit._replace(limit=_with_amount(limit, self._find(hit.key, limit).amount(now)))
                if (limit := hit.limit).tuning and not limit.sheds
                else hit
                for hit in hits
            ]

    def begin(self, features: Features) -> int:
        """Return when a request began, by the clock of the limits."""
        return self._clock() - self._waited(features)

    def note(self, verdict: Verdict, began: int) -> None:
        """Note a verdict of the store on a request, for the rates that follow the load."""
        now, decisions = self._clock(), [*verdict.decisions]
        with self._lock:
            for number, d in enumerate(decisions):
                limit, key, _ = d.hit
                if limit.tuning is None or d.why:
                    continue
                rate, place = self._find(key, limit), None
                rate.note(now, not (d.allowed and d.remaining))
                if verdict.allowed and isinstance(rate, Health):
                    rate.enter(now)
                    place = GatePlace(self, rate, began + round(verdict.delay * SECOND))
                decisions[number] = _explained(d, rate.reason, place)
        verdict.decisions = decisions

    def respond(self, state: Aimd, began: int, status: int | None) -> None:
        """Give a limit the time of a request and its status."""
        with self._lock:
            now = self._clock()
            state.respond(now, now - began, status)

    def leave(self, state: Aimd) -> None:
        """End a request of a limit."""
        with self._lock:
            state.leave()

    def states(self) -> dict[str, Any]:
        """Return the limits by their keys."""
        with self._lock:
            return {key: state for (key, _), state in (*self._older.items(), *self._states.items())}

    def sheds(self) -> list[str]:
        """Return the keys of the limits of requests in flight."""
        return [key for key, state in self.states().items() if type(state) is Aimd]

    async def look(self, hits: Sequence[Hit], ask: Callable[[list[Hit]], Awaitable[list[Decision]]]) -> list[Decision]:
        """Return the decisions on some hits, with the current amounts. Nothing is consumed.

        Hits on limits of requests in flight that are not known are left out. ``ask`` asks the store about rates.
        """
        decisions: list[Decision] = []
        others: list[Hit] = []
        states, at = self.states(), now_us()
        for hit in hits:
            limit, state = hit.limit, states.get(hit.key)
            if not limit.sheds:
                others.append(hit._replace(limit=_with_amount(limit, int(state.limit))) if state else hit)
            elif state:
                amount = int(state.limit)
                left, wait = max(0, amount - state.in_flight), 0 if state.in_flight < amount else SECOND
                decisions.append(AdaptiveDecision(not wait, left, wait, 0, at, 0, hit, "", amount, state.reason))
        asked = await ask(others) if others else []
        return [*decisions, *(_explained(d, states[d.key].reason) if d.key in states else d for d in asked)]

    def levels(self) -> dict[str, Level]:
        """Return the level of each current rule: of several keys, that of the one with the lowest limit."""
        lowest: dict[str, Level] = {}
        names = self._names()
        for key, state in self.states().items():
            rule, level = rule_of(key), Level(int(state.limit), state.in_flight, state.reason)
            if rule in names:
                lowest[rule] = min(lowest.get(rule, level), level)
        return lowest

    def _sample(self, now: int) -> None:
        """Add the levels to the history, for the curves of an operator."""
        self._sample_at = now + EVERY
        for rule, level in self.levels().items():
            self.history.setdefault(rule, deque(maxlen=_SAMPLES)).append((now_us(), level))

    def _find(self, key: str, limit: Limit) -> Any:
        """Return the limit of a key. Clients may choose their keys, so those that are not used are forgotten.

        A limit with requests in flight is used: it would start over without them.
        """
        known = key, cast(Tuning, limit.tuning)
        if (state := self._states.get(known)) is None:
            if len(self._states) >= _MAX_KEYS:
                used = {each: state for each, state in self._older.items() if state.in_flight}
                self._states, self._older = used, self._states
            state = self._states[known] = self._older.pop(known, None) or start(known[1])
        return state


def _explained(d: Decision, reason: str, place: GatePlace | None = None) -> AdaptiveDecision:
    known = (d.allowed, d.remaining, d.retry_us, d.reset_us, d.at_us, d.delay_us, d.hit, d.why)
    return AdaptiveDecision(*known, d.limit, reason, place)


def _monotonic_us() -> int:
    return machine.monotonic_ns() // 1000


def respond(verdict: Verdict, status: int | None) -> None:
    """Note the status of the response to a request, for the adaptive limits of its verdict."""
    for place in _places(verdict):
        place.respond(status)


def postpone(verdict: Verdict, seconds: float) -> None:
    """Leave out the time for which a request waits because of its other limits: the service is not slow then."""
    for place in _places(verdict):
        place.began += round(seconds * SECOND)


def leave(verdict: Verdict, status: int | None = _NO_TIME) -> None:
    """End a request for the adaptive limits of its verdict. A status that is not noted yet is noted now."""
    for place in _places(verdict):
        place.leave(status)


def _places(verdict: Verdict) -> list[GatePlace]:
    return [each.place for each in verdict.decisions if type(each) is AdaptiveDecision and each.place is not None]
