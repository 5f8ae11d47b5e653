"""The rules of limits that follow the load. Pure arithmetic: the time is an argument, and there is no I/O.

``Aimd`` is a limit of concurrent requests that follows their times: additive increase, multiplicative decrease. The
responses of a window decide its end. When at most a tenth of them are slow, their 90th percentile is within the target,
and a limit that was in use grows. Otherwise the limit falls. A response that the service has dropped is slow even if it
took little time. A window without responses changes nothing. ``Demand`` and ``Health`` are the amounts of rates.
"""

from typing import ClassVar, Final

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
"""The microseconds for which a rejection keeps lower classes out."""

_WINDOWS: Final = 100  # of a demand
_OFTEN: Final = 90
_SELDOM: Final = 50
_STEP: Final = 1.05
_MOST_STEPS: Final = 1000
"""So many steps lead from the largest amount of any quota to the smallest one."""


class Aimd:
    """The limit of the requests in flight of one key, and these requests.

    After a start, and from the floor, the limit doubles until a window is slow. A request of a class may pass while
    the requests in flight are below the share of its class. A class that is rejected keeps the lower classes out for
    another second, unless less than half of their share is in use. So the lowest class is rejected first.

    Attributes:
        limit: The limit, which has fractions while it falls.
        in_flight: The number of requests in flight.
        reason: Why the limit has changed last: ``"start"``, ``"grew"``, ``"slow"`` or ``"dropped"``.
    """

    __slots__ = ("_began", "_ceiling", "_doubles", "_dropped", "_ended", "_floor", "_kept_out", "_kept_until", "_peak",
                 "_slow", "_step", "_target", "in_flight", "limit", "reason")  # fmt: skip
    drops: ClassVar = frozenset({503, 504, None})
    """The statuses of requests that the service has dropped. None is a request that it has cancelled."""

    def __init__(self, tuning: Tuning) -> None:
        self._floor, self._ceiling, self._target, self._step = tuning.floor, tuning.ceiling, tuning.target, 1.0
        self.limit = float(min(max(tuning.floor, _START), tuning.ceiling))
        self.in_flight = 0
        self.reason = "start"
        self._doubles = True
        self._kept_out = self._kept_until = 0  # the share of a class that was rejected, and until when it matters
        self._begin(-1)  # a window begins with its first request

    @property
    def _used(self) -> int:
        """How much of the limit is in use at the start of a window."""
        return self.in_flight

    def _begin(self, now: int) -> None:
        self._began = now
        self._ended = self._slow = self._dropped = 0
        self._peak = self._used

    def room(self, now: int, share: int = 100) -> tuple[int, int]:
        """Return how many more requests of a class may pass, and its limit: a share in percent, at least 1.

        Without room, a request of the class is rejected.
        """
        if now - self._began >= _WINDOW:
            self._close(now)
        most = int(self.limit * share / 100) or 1
        room, is_apart = most - self.in_flight, now < self._kept_until
        if is_apart and share < self._kept_out and self.in_flight * 2 >= most:
            room = 0
        if room <= 1 and (share >= self._kept_out or not is_apart):
            self._kept_out, self._kept_until = share, now + _APART
        if room > 0:
            return room, most
        self._peak = self._ceiling  # the demand is above the limit
        return 0, most

    def enter(self, now: int) -> None:
        """Count a request that begins."""
        if self._began < 0:
            self._begin(now)
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def respond(self, now: int, took: int, status: int | None = 200) -> None:
        """Note the response to a request; None is a request that timed out, or that the service has cancelled."""
        is_dropped = status in self.drops
        self._ended += 1
        self._slow += is_dropped or took > self._target
        self._dropped += is_dropped
        self._close(now)

    def leave(self) -> None:
        """End a request."""
        self.in_flight -= 1

    def _close(self, now: int) -> None:
        """Change the limit at the end of a window."""
        if self._began < 0 or now - self._began < _WINDOW:
            return
        if self._slow * 10 > max(self._ended, _SAMPLES):
            self.limit = max(float(self._floor), self.limit * _DECREASE)
            self.reason = "dropped" if self._dropped * 2 > self._slow else "slow"
            self._doubles = self.limit == self._floor
            self._begin(now)
        elif self._ended >= _SAMPLES:
            if self._peak >= self.limit * _IN_USE and self.limit < self._ceiling:
                self.limit = min(float(self._ceiling), self.limit * 2 if self._doubles else self.limit + self._step)
                self.reason = "grew"
            self._begin(now)


class Demand:
    """The amount of a rate that follows its demand, as in the rate limiter of RocksDB.

    A window is a period of the quota. It is drained if the quota had nothing left, or a request was rejected. After 100
    windows, the amount rises by 5% if at least 90 were drained, and falls by 5% if fewer than 50 were. It starts at
    half of the largest amount.

    Attributes:
        limit: The amount, with fractions.
        reason: Why the amount has changed last: ``"start"``, ``"grew"`` or ``"unused"``.
    """

    __slots__ = ("_began", "_ceiling", "_drained", "_floor", "_last", "_period", "limit", "reason")
    in_flight: ClassVar = 0
    """It does not depend on the requests in flight."""

    def __init__(self, tuning: Tuning) -> None:
        self._floor, self._ceiling, self._period = tuning.floor, tuning.ceiling, tuning.period
        self.limit = max(float(tuning.floor), tuning.ceiling / 2)
        self.reason = "start"
        self._began = self._last = -1  # the first window that is counted, and the last one that was drained
        self._drained = 0

    def amount(self, now: int) -> int:
        """Return the amount at a time in microseconds."""
        window = now // self._period
        if self._began < 0:
            self._began = window
        if (passed := (window - self._began) // _WINDOWS) > 0:
            if self._drained >= _OFTEN:
                self.limit, self.reason = min(float(self._ceiling), self.limit * _STEP), "grew"
            elif self._drained < _SELDOM:
                self._lower(1)
            self._lower(passed - 1)  # there were no requests
            self._began, self._drained = self._began + passed * _WINDOWS, 0
        return int(self.limit)

    def note(self, now: int, drained: bool) -> None:
        """Note a decision, and whether it has shown that the window is drained."""
        self.amount(now)
        window = now // self._period
        if drained and window > self._last:
            self._last = window
            self._drained += 1

    def _lower(self, steps: int) -> None:
        if steps:
            self.limit, self.reason = max(float(self._floor), self.limit / _STEP ** min(steps, _MOST_STEPS)), "unused"


class Health(Aimd):
    """The amount of a rate that follows the times of its responses and their errors.

    The windows are those of ``Aimd``. The amount was in use if the quota had nothing left, or a request was rejected. A
    step is a hundredth of the largest amount, at least 1.
    """

    __slots__ = ()
    drops: ClassVar = frozenset({None, *range(500, 600)})

    def __init__(self, tuning: Tuning) -> None:
        super().__init__(tuning)
        self._step = max(1.0, tuning.ceiling / 100)

    def amount(self, now: int) -> int:
        """Return the amount at a time in microseconds."""
        self._close(now)
        return int(self.limit)

    def note(self, now: int, drained: bool) -> None:
        """Note a decision, and whether it has shown that the quota is in use."""
        if self._began < 0:
            self._begin(now)
        if drained:
            self._peak = self._ceiling

    @property
    def _used(self) -> int:
        return 0  # the quota shows it

    def enter(self, now: int) -> None:
        """Count a request that begins, which is no sign that the amount is in use."""
        self.in_flight += 1


_STATES: Final[dict[str, type[Aimd | Demand]]] = {"time": Aimd, "demand": Demand, "health": Health}


def start(tuning: Tuning) -> Aimd | Demand:
    """Return an adaptive limit at its start."""
    return _STATES[tuning.by](tuning)
