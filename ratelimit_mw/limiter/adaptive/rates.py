"""The amount of a rate that follows its demand, or the times of the responses."""

from typing import ClassVar, Final

from ...decision import Tuning
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
        tuning: The bounds of the amount, and the period.

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

    The windows are those of ``Aimd``. The amount was in use if the quota had nothing left, or a request was rejected.

    Args:
        tuning: The bounds of the amount, and the time within which 90% of the requests should end. A step is a
            hundredth of the largest amount, at least 1.
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
