"""A clock that moves only when told to."""

from __future__ import annotations

from ..clock import to_seconds, to_us

__all__ = ["ManualClock"]


class ManualClock:
    """A clock set by hand, exact to the microsecond.

    >>> clock = ManualClock(1_000_000.0)
    >>> clock.advance(1.5)
    >>> clock.time, clock()
    (1000001.5, 1000001500000)
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._us = to_us(seconds)

    def __call__(self) -> int:
        """The time in whole microseconds, as every clock given to a limiter."""
        return self._us

    @property
    def time(self) -> float:
        """The time in seconds."""
        return to_seconds(self._us)

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``; a negative number moves back."""
        self._us += to_us(seconds)

    def set(self, seconds: float) -> None:
        """Move to ``seconds`` since 1970."""
        self._us = to_us(seconds)
