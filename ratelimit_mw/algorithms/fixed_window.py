"""fixed-window: a count for each window ``[k*P, (k+1)*P)`` from the epoch. Up to 2N can pass around a window's edge.

token-bucket with ``refill = "interval"`` is a window too: it begins at the first hit, and each window is a refill.

State: (end of the window, count, time of its first hit).
"""

from ..decision import Algorithm, Charge, Decision
from ..quota import Quota

State = tuple[int, int, int] | None


class FixedWindow(Algorithm):
    """Allows a cost ``c`` when ``count + c <= N`` in the current window."""

    name = "fixed-window"
    fields = 3
    is_aligned = True

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self.alignment = self.period if self.is_aligned else 1

    @property
    def lifetime(self) -> int:
        return self.period

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        if state is not None and now < state[0]:
            end, count, began = state
        else:
            end, count, began = now - now % self.alignment + self.period, 0, now
        # When the clock goes back, the latest window stays the current one.
        at = now if now >= end - self.period else end - self.period
        room = self.limit - count
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else None if cost > self.limit else end - now
            return state, Decision(cost == 0, room if room > 0 else 0, retry, end - now if count else 0, at)
        # Clocks of several machines differ by a little.
        return (end, count + cost, at if at < began else began), Decision(True, room - cost, 0, end - now, at)

    def charge(self, state: State, now: int, cost: int) -> State:
        if state is not None and now < state[0]:
            end, count, began = state
            return end, count + cost, min(began, max(now, end - self.period))
        return now - now % self.alignment + self.period, cost, now

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or not state[2] <= consumed.at_us < state[0]:
            return state
        end, count, began = state
        return (end, count - cost, began) if count > cost else None


class IntervalTokenBucket(FixedWindow):
    """Allows a cost ``c`` when ``count + c <= B`` since the last refill. The first counted hit is a refill too."""

    name = "token-bucket"
    takes_burst = True
    variant = "interval"
    is_aligned = False
