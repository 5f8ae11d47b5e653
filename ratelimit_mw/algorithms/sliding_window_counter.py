"""sliding-window-counter, the default: this window's count plus the share of the last one still in sight.

State: (time of the last change, count of the window before it, count of its window). The part of the previous
window inside ``(t-P, t]`` is ``P - elapsed - 1`` of its ``P`` microseconds; its weight is rounded down, so that
a client that keeps exactly to the rate is never refused.
"""

from __future__ import annotations

from ..decision import Decision, Spent
from .base import Algorithm

State = tuple[int, int, int] | None


class SlidingWindowCounter(Algorithm):
    """Allowed when ``floor(previous * (P - elapsed - 1) / P) + current + c <= N``."""

    name = "sliding-window-counter"

    @property
    def lifetime(self) -> int:
        return 2 * self.period

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        period = self.period
        at, previous, current = now, 0, 0
        if state is not None:
            at, previous, current = _rolled(state, now, period)
        elapsed = at % period
        room = self.amount - previous * (period - elapsed - 1) // period - current
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else self._fits_after(at, elapsed, previous, current, cost, now)
            reset = self._fresh_after(at, elapsed, previous, current, now)
            return state, Decision(cost == 0, max(0, room), retry, reset, at)
        current += cost
        # The state is fresh once its current count, become the previous one, weighs less than 1.
        reset = at - elapsed + 2 * period - 1 - (period - 1) // current - now
        return (at, previous, current), Decision(True, room - cost, 0, reset, at)

    def _fits_after(self, at: int, elapsed: int, previous: int, current: int, cost: int, now: int) -> int | None:
        room, start = self.amount - current - cost, at - elapsed
        if room >= 0:
            return start + self._weighs_at_most(previous, room) - now
        room, start = self.amount - cost, start + self.period
        return start + self._weighs_at_most(current, room) - now if room >= 0 else None

    def _fresh_after(self, at: int, elapsed: int, previous: int, current: int, now: int) -> int:
        if current:
            return at - elapsed + self.period + self._weighs_at_most(current, 0) - now
        return max(at, at - elapsed + self._weighs_at_most(previous, 0)) - now if previous else 0

    def _weighs_at_most(self, count: int, room: int) -> int:
        """The first moment of a window at which the previous one, of ``count``, weighs at most ``room``."""
        return max(0, self.period - 1 - ((room + 1) * self.period - 1) // count)

    def charge(self, state: State, now: int, cost: int) -> State:
        at, previous, current = (now, 0, 0) if state is None else _rolled(state, now, self.period)
        return at, previous, current + cost

    def give_back(self, state: State, now: int, spent: Spent, cost: int) -> State:
        if state is None:
            return None
        at, previous, current = state
        behind = at // self.period - spent.at_us // self.period
        if behind == 0:
            current = max(0, current - cost)
        elif behind == 1:
            previous = max(0, previous - cost)
        return (at, previous, current) if previous or current else None


def _rolled(state: tuple[int, int, int], now: int, period: int) -> tuple[int, int, int]:
    """The state as of ``now``, or as of its own time when that is later."""
    at, previous, current = state
    if now <= at:
        return state
    windows = now // period - at // period
    if windows == 0:
        return now, previous, current
    return now, current if windows == 1 else 0, 0
