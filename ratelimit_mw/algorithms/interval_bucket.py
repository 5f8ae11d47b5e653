"""token-bucket with ``refill = "interval"``: full again once P has passed since the last refill, with no refill before.

State: (time of the last refill, tokens consumed since).
"""

from __future__ import annotations

from ..decision import Decision
from ..quota import Quota
from ..receipt import Charge
from .base import Algorithm

State = tuple[int, int] | None


class IntervalTokenBucket(Algorithm):
    """Allows a cost ``c`` when ``consumed + c <= B`` since the last refill. The first counted hit is a refill too."""

    name = "token-bucket"
    takes_burst = True

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        self.capacity = self.limit

    @property
    def lifetime(self) -> int:
        return self.period

    @property
    def variant(self) -> str:
        return "interval"

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        refilled, consumed = self._refill(state, now)
        room = self.capacity - consumed
        live = state is not None and refilled == state[0]
        reset = refilled + self.period - now if live else 0
        at = max(now, refilled)
        if cost == 0:
            return state, Decision(True, max(0, room), 0, reset, at)
        if cost > room:
            return state, Decision(False, max(0, room), None if cost > self.capacity else reset, reset, at)
        reset = refilled + self.period - now
        return (refilled, consumed + cost), Decision(True, room - cost, 0, reset, at)

    def _refill(self, state: State, now: int) -> tuple[int, int]:
        return (now, 0) if state is None or now - state[0] >= self.period else state

    def charge(self, state: State, now: int, cost: int) -> State:
        refilled, consumed = self._refill(state, now)
        return refilled, consumed + cost

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        if state is None or not 0 <= consumed.at_us - state[0] < self.period:
            return state
        return (state[0], state[1] - cost) if state[1] > cost else None
