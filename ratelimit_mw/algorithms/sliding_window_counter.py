"""sliding-window-counter: the count of this window plus the weighted count of the previous one.

State: (start of the window, time of the last change, count of the window before it, count of the window, time of the
first hit).

The part of the previous window inside ``(t-P, t]`` is ``P - elapsed - 1`` of its ``P`` microseconds. Its weight is
rounded down, so a client whose costs of 1 keep exactly to the rate is never rejected. A cost ``c`` at an even pace of
``R`` per period is never rejected if ``R + c - 1 <= N``.
"""

from ..decision import Algorithm, Charge, Decision

State = tuple[int, int, int, int, int] | None


class SlidingWindowCounter(Algorithm):
    """Allows a cost ``c`` when ``floor(previous * (P - elapsed - 1) / P) + current + c <= N``."""

    name = "sliding-window-counter"
    fields = 5

    @property
    def lifetime(self) -> int:
        return 2 * self.period

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        period = self.period
        if state is None:
            start, at, previous, current, began = self.shared(now - now % period), now, 0, 0, now
        else:
            start, at, previous, current, began = state
            if now > at:
                at = now
                if now >= start + period:
                    start, at, previous, current, _ = _roll(state, now, period)
                    start = self.shared(start)
        room = self.amount - current
        if previous:
            room -= previous * (period - 1 - at + start) // period
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else self._fits_at(start, previous, current, cost, now)
            reset = self._fresh_at(start, at, previous, current) - now
            return state, Decision(cost == 0, room if room > 0 else 0, retry, reset, at)
        current += cost
        # The state is fresh once its current count, as the previous one, weighs less than 1.
        reset = start + 2 * period - 1 - (period - 1) // current - now
        return (start, at, previous, current, began), Decision(True, room - cost, 0, reset, at)

    def _fits_at(self, start: int, previous: int, current: int, cost: int, now: int) -> int | None:
        """Microseconds until ``cost`` fits: in this window, else in the next one."""
        room = self.amount - current - cost
        if room >= 0:
            return start + self._weighs_at_most(previous, room) - now
        room = self.amount - cost
        return start + self.period + self._weighs_at_most(current, room) - now if room >= 0 else None

    def _fresh_at(self, start: int, at: int, previous: int, current: int) -> int:
        """Return the time from which all counts weigh 0."""
        if current:
            return start + self.period + self._weighs_at_most(current, 0)
        return max(at, start + self._weighs_at_most(previous, 0)) if previous else at

    def _weighs_at_most(self, count: int, room: int) -> int:
        """Return when in a window the previous one, of ``count``, weighs at most ``room``, less than ``count``."""
        return self.period - 1 - ((room + 1) * self.period - 1) // count

    def charge(self, state: State, now: int, cost: int) -> State:
        fresh = now - now % self.period, now, 0, 0, now
        start, at, previous, current, began = _roll(state or fresh, now, self.period)
        return start, at, previous, current + cost, began

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or consumed.at_us < state[4]:
            return state
        start, at, previous, current, began = state
        if start <= consumed.at_us < start + self.period:
            current = max(0, current - cost)
        elif start - self.period <= consumed.at_us < start:
            previous = max(0, previous - cost)
        return (start, at, previous, current, began) if previous or current else None


def _roll(state: tuple[int, int, int, int, int], now: int, period: int) -> tuple[int, int, int, int, int]:
    """Return the state as of ``now``, or as of its own time when that is later."""
    start, at, previous, current, began = state
    if now <= at:
        return state
    windows = (now - start) // period
    if windows == 0:
        return start, now, previous, current, began
    return start + windows * period, now, current if windows == 1 else 0, 0, began
