"""The amount of a rate that follows its demand, or the times of the responses."""

from typing import Final

from .aimd import Aimd

_WINDOWS: Final = 100
_OFTEN: Final = 90
_SELDOM: Final = 50
_STEP: Final = 1.05
_MOST_STEPS: Final = 1000
"""So many steps lead from the largest amount of any quota to the smallest one."""


class Demand:
    """The amount of a rate that follows its demand, as in the rate limiter of RocksDB.

    A window is a period of the quota. It is drained if the quota had nothing left, or a request was rejected. After 100
    windows, the amount rises by 5% if at least 90 were drained, and falls by 5% if fewer than 50 were. It starts at
    half of the largest amount.

    Args:
        floor: The smallest amount, at least 1.
        ceiling: The largest amount.
        period: The period in microseconds.

    Attributes:
        limit: The amount, with fractions.
    """

    __slots__ = ("_began", "_ceiling", "_drained", "_floor", "_last", "_period", "limit")

    def __init__(self, floor: int, ceiling: int, period: int) -> None:
        self._floor, self._ceiling, self._period = floor, ceiling, period
        self.limit = max(float(floor), ceiling / 2)
        self._began = self._last = -1  # the first window that is counted, and the last one that was drained
        self._drained = 0

    def amount(self, now: int) -> int:
        """Return the amount at a time in microseconds."""
        window = now // self._period
        if self._began < 0:
            self._began = window
        if (passed := (window - self._began) // _WINDOWS) > 0:
            if self._drained >= _OFTEN:
                self.limit = min(float(self._ceiling), self.limit * _STEP)
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
        self.limit = max(float(self._floor), self.limit / _STEP ** min(steps, _MOST_STEPS))


class Health(Aimd):
    """The amount of a rate that follows the times of its responses and their errors.

    The windows are those of ``Aimd``. The amount was in use if the quota had nothing left, or a request was rejected.

    Args:
        floor: The smallest amount, at least 1.
        ceiling: The largest amount. A step is a hundredth of it, at least 1.
        target: The time in microseconds within which 90% of the requests should end.
    """

    __slots__ = ()

    def __init__(self, floor: int, ceiling: int, target: int) -> None:
        super().__init__(floor, ceiling, target, max(1.0, ceiling / 100))

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
