"""``AdaptiveLimits``: the limits that follow the load of this process, in front of the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple

from ..clock import SECOND, Clock, now_us, wall_us
from ..decision import SHED, Decision, Hit, Limit, Tuning, Verdict, build_verdict, rule_of
from ..keys.features import Features
from ..rules.plan import Plan
from ..rules.priorities import REQUEST_START
from ..runtime.forksafe import CHANCE, create_lock
from .adaptive import Aimd, start

_MAX_KEYS: Final = 5_000
"""So many keys are kept, and as many older ones."""
_MAX_RETRY: Final = 5
"""The longest wait of a rejection, in seconds. Waits are random, so that clients do not come back at once."""
_MAX_QUEUE: Final = 60 * SECOND
"""A request that has waited longer before this process has a proxy with a wrong clock."""
NO_TIME: Final = 101
"""The status of a request whose time does not count: a WebSocket, which may stay open, or one rejected in a view."""
HISTORY_STEP: Final = 10 * SECOND
"""The length of a step of the history."""
_STEPS: Final = 360
_LAG_INTERVAL: Final = 0.05  # seconds between two looks at the lag of an event loop
_at: Final = lru_cache(5_000)(Limit.at)


class RunningRequest:
    """A request in flight at adaptive limits. One whose verdict was dropped ends with this object.

    Attributes:
        began: When the request began, by the clock of the limits.
    """

    __slots__ = ("__weakref__", "_adaptive", "_has_responded", "_states", "began")

    def __init__(self, adaptive: AdaptiveLimits, began: int, states: Iterable[Aimd]) -> None:
        self._adaptive, self.began = adaptive, began
        self._states: list[Aimd] = []
        self._has_responded = False
        for state in states:
            self.enter(state)

    def enter(self, state: Aimd) -> None:
        """Count the request at a limit until it ends."""
        self._states.append(state)
        state.requests.add(self)

    def now(self) -> int:
        """Return the time by the clock of the limits. Add a time of the client, such as of an upload, to ``began``."""
        return self._adaptive.clock()

    def note_response(self, status: int | None) -> None:
        """Note the status of the response, once."""
        if not self._has_responded:
            self._has_responded = True
            if status != NO_TIME:
                with self._adaptive.lock:
                    took = self._adaptive.clock() - self.began
                    for state in self._states:
                        state.note_response(took, status)

    def leave(self, status: int | None = NO_TIME) -> None:
        """End the request. A status that is not noted yet is noted now."""
        self.note_response(status)
        for state in self._states:
            state.requests.discard(self)


class Lag(threading.local):
    """How late the event loop of this thread runs its callbacks: for so long, a request has waited before it begins.

    It is measured while requests begin.
    """

    _loop: asyncio.AbstractEventLoop | None = None  # that will look
    _due = _late = 0.0

    def read(self) -> int:
        """Return the lag in microseconds; 0 without an event loop."""
        if (loop := asyncio._get_running_loop()) is None:
            return 0
        now = loop.time()
        if loop is not self._loop:
            self._late = self._late if now - self._due - self._late < 1 else 0.0  # it has looked lately
            self._loop, self._due = loop, now + _LAG_INTERVAL
            loop.call_at(self._due, self._look, loop)
        return int(max(self._late, now - self._due) * SECOND)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._late = None, loop.time() - self._due


class Level(NamedTuple):
    """An adaptive limit at a moment: its amount, the requests in flight, and why it has changed last."""

    limit: int
    in_flight: int
    reason: str


class AdaptiveLimits:
    """The adaptive limits of a process, one for each key."""

    def __init__(self, clock: Clock | None, names: Callable[[], Container[str]]) -> None:
        self.clock, self._names = clock or now_us, names
        self._lag = Lag() if clock is None else None
        self.lock = create_lock(self, "lock", threading.Lock, AdaptiveLimits.start_over)
        self.start_over()

    def start_over(self, _intact: bool = True) -> None:
        """Forget all limits. In a forked child, its parent has the requests in flight."""
        self._states: dict[tuple[str, Tuning], Any] = {}
        self._older: dict[tuple[str, Tuning], Any] = {}
        self._history: dict[int, dict[str, Level]] = {}
        self._sample_at = 0
        self._chance = Random(CHANCE.random()).random  # noqa: S311 - a wait is no secret

    def enter(self, hits: Iterable[Any], features: Features) -> tuple[Verdict, list[Hit]]:
        """Decide limits of requests in flight. A request that none of them rejects is in flight from now on.

        The other hits are returned for the store. Rates have their current amounts.
        """
        now, allowed, running = self.clock(), True, None
        decisions: list[Decision] = []
        others: list[Hit] = []
        states: list[Aimd] = []
        with self.lock:
            for hit in hits:
                limit, key, cost = hit
                if (tuning := limit.tuning) is None:
                    others.append(hit)
                    continue
                state = self._states.get((key, tuning)) or self._find(key, tuning, now)
                here = _at(limit, state.amount(now), state.reason)
                if not limit.sheds:
                    others.append(Hit(here, key, cost))
                    continue
                states.append(state)
                if room := state.claim(now, here.limit, here.held_percent):
                    decisions.append(Decision(True, room - 1, 0, 0, now, 0, (here, key, cost)))
                else:
                    allowed = allowed and limit.shadow
                    wait = int(1 + self._chance() * _MAX_RETRY) * SECOND
                    decisions.append(Decision(False, 0, wait, 0, now, 0, (here, key, cost), SHED))
            if allowed:
                running = RunningRequest(self, now - self._waited(features), states)
        if now >= self._sample_at:
            self._sample(now)
        return Verdict(decisions, allowed, None, None, running), others

    def _waited(self, features: Features) -> int:
        """Return how long a request has waited in a proxy and for the event loop, in microseconds."""
        waited = 0 if self._lag is None else self._lag.read()
        if type(received := features.get(REQUEST_START)) is float:
            queued = wall_us() - int(received * SECOND)  # proxies have the wall clock of the moment
            waited += queued if 0 < queued < _MAX_QUEUE else 0
        return waited

    def join(self, plan: Plan, here: Verdict, verdict: Verdict) -> Verdict:
        """Add the decisions of an allowed request to the verdict of the store, so that those of a rule are together."""
        if here.running is not None:
            self._note(verdict, here.running)
        order = [rule.name for rule in plan.rules]
        every = [*here.decisions, *verdict.decisions]
        verdict.decisions = sorted(every, key=lambda decision: order.index(decision.hit[0].rule))
        return verdict

    def _note(self, verdict: Verdict, running: RunningRequest) -> None:
        """Note a verdict of the store on a request, for the rates that follow the load. A delay is no sign of it."""
        now = self.clock()
        with self.lock:
            for decision in verdict.decisions:
                limit, key, _ = decision.hit
                if limit.tuning is None or decision.why:
                    continue
                rate = self._find(key, limit.tuning, now)
                rate.note_decision(now, not (decision.allowed and decision.remaining))
                if type(rate) is Aimd:
                    running.enter(rate)
        if verdict.allowed:
            verdict.running = running
            running.began += round(verdict.delay * SECOND)

    def look(self, hits: Iterable[Hit], is_here: bool) -> tuple[Verdict, list[Hit]]:
        """Return the verdict on limits of requests in flight, and the other hits as ``enter`` does. Consume nothing.

        Unless the client ``is_here``, limits are known only if its requests have reached this process.
        """
        now, states = self.clock(), self.states()
        decisions, others = list[Decision](), list[Hit]()
        for hit in hits:
            limit, key, cost = hit
            tuning = limit.tuning
            state: Any = tuning and (states.get((key, tuning)) or (start(tuning, now) if is_here else None))
            if state is not None:
                with self.lock:
                    hit = hit._replace(limit=_at(limit, state.amount(now), state.reason))
            if not limit.sheds:
                others.append(hit)
            elif state is not None:
                room = state.claim(now, hit.limit.limit, limit.held_percent, begins=False)
                wait, why = (0, "") if room or not cost else (SECOND, SHED)
                decisions.append(Decision(not wait, room, wait, 0, now, 0, hit, why))
        return build_verdict(decisions, consumed=False), others

    def states(self) -> dict[tuple[str, Tuning], Any]:
        """Return the limits by their keys."""
        with self.lock:
            return {**self._older, **self._states}

    def levels(self) -> dict[str, Level]:
        """Return the level of each current rule: of several keys, that of the one with the lowest limit."""
        lowest: dict[str, Level] = {}
        names = self._names()
        for (key, _), state in self.states().items():
            rule, level = rule_of(key), Level(int(state.limit), len(state.requests), state.reason)
            if rule in names:
                lowest[rule] = min(lowest.get(rule, level), level)
        return lowest

    def history(self) -> tuple[int, list[dict[str, Level]]]:
        """Return the levels of the last hour in steps, and when they begin. The last step is that of now."""
        last = self.clock() // HISTORY_STEP
        history = {**self._history, last: self.levels()}
        first = min(step for step in history if step > last - _STEPS)
        return first * HISTORY_STEP, [history.get(step, {}) for step in range(first, last + 1)]

    def _sample(self, now: int) -> None:
        """Add the levels to the history, for the curves of an operator."""
        step = now // HISTORY_STEP
        self._sample_at = (step + 1) * HISTORY_STEP
        levels = self.levels()
        with self.lock:  # several threads may begin a step
            self._history[step] = levels
            if len(self._history) > _STEPS:
                del self._history[min(self._history)]

    def _find(self, key: str, tuning: Tuning, now: int) -> Any:
        """Return the limit of a key. Clients may choose their keys, so those that are not used are forgotten.

        A limit with requests in flight is used: it would start over without them.
        """
        known = key, tuning
        if (state := self._states.get(known)) is None:
            if len(self._states) >= _MAX_KEYS:
                used = {each: state for each, state in self._older.items() if state.requests}
                self._states, self._older = used, self._states
            state = self._states[known] = self._older.pop(known, None) or start(tuning, now)
        return state
