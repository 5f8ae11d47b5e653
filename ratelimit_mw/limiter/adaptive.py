"""The rules of amounts that follow the load. Pure arithmetic: the time is an argument, and there is no I/O.

``Aimd`` follows the times of responses: additive increase, multiplicative decrease. The responses of a window decide
its end. When at most a tenth of them are slow, their 90th percentile is within the target, and an amount that was in
use grows. Otherwise it falls. A response that the service has dropped is slow even if it took little time. A window
without responses changes nothing. ``Demand`` follows the demand for a rate.
"""

from typing import Any, ClassVar, Final
from weakref import WeakSet

from ..clock import SECOND
from ..decision import Tuning

_WINDOW: Final = SECOND
"""The shortest window in microseconds."""
_SAMPLES: Final = 100
"""A window has as many responses, or so many slow ones that more responses cannot change its result."""
_START: Final = 20
_DECREASE: Final = 0.8
_IN_USE: Final = 0.8
_APART: Final = SECOND
"""The microseconds for which a class that is full keeps lower classes out."""

_WINDOWS: Final = 100  # of a demand
_OFTEN: Final = 90
_SELDOM: Final = 50
_STEP: Final = 1.05
_MAX_STEPS: Final = 1000
"""So many steps lead from the largest amount of any quota to the smallest one."""


class Aimd:
    """The limit of the requests in flight of one key, and these requests; or the amount of a rate by ``"health"``.

    After a start, and from the floor, it doubles until a window is slow. Then it grows by 1, or for a rate by a
    hundredth of the largest amount. A class that takes its last place, or is rejected, keeps the lower classes out for
    another second, unless less than half of their share is in use. So the lowest class is rejected first.

    Attributes:
        limit: The amount, with fractions.
        reason: Why it has changed last: ``"start"``, ``"grew"``, ``"slow"`` or ``"dropped"``.
        requests: The requests in flight. One that is gone has ended.
    """

    __slots__ = ("_began", "_doubles", "_dropped", "_drops", "_ended", "_is_used", "_kept_out", "_kept_until", "_slow",
                 "_step", "_tuning", "limit", "reason", "requests")  # fmt: skip
    drops: ClassVar = frozenset({503, 504})
    """The statuses of requests that the service has dropped."""
    errors: ClassVar = frozenset(range(500, 600))
    """The statuses that lower a rate."""

    def __init__(self, tuning: Tuning, now: int) -> None:
        is_rate = tuning.by == "health"
        self._tuning, self._drops = tuning, self.errors if is_rate else self.drops
        self._step = max(1.0, tuning.ceiling / 100) if is_rate else 1.0
        self.limit = float(min(max(tuning.floor, _START), tuning.ceiling))
        self.reason = "start"
        self.requests: WeakSet[Any] = WeakSet()
        self._doubles = True
        self._kept_out = self._kept_until = 0  # the percent that a full class leaves, and until when it counts
        self._begin(now)

    def _begin(self, now: int) -> None:
        self._began = now
        self._ended = self._slow = self._dropped = 0
        self._is_used = False

    def amount(self, now: int) -> int:
        """Return the amount at a time in microseconds. It changes at the end of a window."""
        if self._ended and now - self._began >= _WINDOW:
            if self._slow * 10 > max(self._ended, _SAMPLES):
                self.limit = max(self._tuning.floor, self.limit * _DECREASE)
                self.reason = "dropped" if self._dropped * 2 > self._slow else "slow"
                self._doubles = self.limit == self._tuning.floor
                self._begin(now)
            elif self._ended >= _SAMPLES:
                if self._is_used and self.limit < self._tuning.ceiling:
                    grown = self.limit * 2 if self._doubles else self.limit + self._step
                    self.limit, self.reason = min(self._tuning.ceiling, grown), "grew"
                self._begin(now)
        return int(self.limit)

    def claim(self, now: int, most: int, held: int, begins: bool = True) -> int:
        """Return how many more requests of a class may pass, and note that one ``begins``.

        The class has ``most`` of the limit, and leaves ``held`` percent to others.
        """
        running = len(self.requests)
        room, is_below = most - running, now < self._kept_until and held > self._kept_out
        if room < 0 or (is_below and running * 2 >= most):
            room = 0
        if begins:
            if room <= 1 and not is_below:
                self._kept_out, self._kept_until = held, now + _APART
            if not room or running + 1 >= self.limit * _IN_USE:
                self._is_used = True
        return room

    def note_decision(self, _: int, is_used: bool) -> None:
        """Note a decision, and whether it has shown that the amount is in use."""
        self._is_used |= is_used

    def note_response(self, took: int, status: int | None = 200) -> None:
        """Note the response to a request. None is one that was cancelled, as when its client has left."""
        if status is None and took <= self._tuning.target:
            return  # clients that leave early would lower the limit of all others
        is_dropped = status in self._drops
        self._ended += 1
        self._slow += is_dropped or took > self._tuning.target
        self._dropped += is_dropped


class Demand:
    """The amount of a rate that follows its demand, as in the rate limiter of RocksDB.

    A window is a period of the quota. It is drained if the quota had nothing left, or a request was rejected. After 100
    windows, the amount rises by 5% if at least 90 were drained, and falls by 5% if fewer than 50 were. It starts at
    half of the largest amount.

    Attributes:
        limit: The amount, with fractions.
        reason: Why the amount has changed last: ``"start"``, ``"grew"`` or ``"unused"``.
    """

    __slots__ = ("_began", "_drained", "_last", "_tuning", "limit", "reason")
    requests: ClassVar = frozenset[Any]()
    """None: this limit does not depend on the requests in flight."""

    def __init__(self, tuning: Tuning, now: int) -> None:
        self._tuning = tuning
        self.limit = max(tuning.floor, tuning.ceiling / 2)
        self.reason = "start"
        self._began = now // tuning.period  # the first window that is counted
        self._last = -1  # the last one that was drained
        self._drained = 0

    def amount(self, now: int) -> int:
        """Return the amount at a time in microseconds."""
        passed = (now // self._tuning.period - self._began) // _WINDOWS
        if passed > 0:
            unused = passed - (self._drained >= _SELDOM)  # there were no requests later
            if self._drained >= _OFTEN:
                self.limit, self.reason = min(self._tuning.ceiling, self.limit * _STEP), "grew"
            if unused:
                lower = self.limit / _STEP ** min(unused, _MAX_STEPS)
                self.limit, self.reason = max(self._tuning.floor, lower), "unused"
            self._began, self._drained = self._began + passed * _WINDOWS, 0
        return int(self.limit)

    def note_decision(self, now: int, is_used: bool) -> None:
        """Note a decision, and whether it has shown that the window is drained."""
        window = now // self._tuning.period
        if is_used and window > self._last:
            self._last = window
            self._drained += 1


def start(tuning: Tuning, now: int) -> Aimd | Demand:
    """Return an adaptive amount at its start."""
    return Demand(tuning, now) if tuning.by == "demand" else Aimd(tuning, now)
