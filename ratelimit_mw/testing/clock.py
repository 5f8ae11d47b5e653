"""A clock that moves only when told to, and the way to put an application's limits on it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ..clock import Clock, checked_clock, to_seconds, to_us
from ..testmode import testmode

__all__ = ["ManualClock", "limits_timed_by"]


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


@contextmanager
def limits_timed_by(clock: Clock) -> Iterator[None]:
    """Within this block every limiter that was given no clock of its own counts by this one, and afresh.

    It does not matter when the limiter was built, nor what its store is: what was counted before is not seen within,
    nor is what is counted within seen afterwards, or by anybody else who uses the store. ``TypeError`` for a clock that
    does not return whole microseconds.

    >>> from ratelimit_mw import Limiter, Rule
    >>> limiter = Limiter([Rule(name="api", limits="1/minute", key=[])])
    >>> clock = ManualClock(1_000_000.0)
    >>> with limits_timed_by(clock):
    ...     first, second = limiter.hit({}), limiter.hit({})
    ...     clock.advance(second.retry_after)
    ...     (first.allowed, second.allowed, limiter.hit({}).allowed)
    (True, False, True)
    """
    before = testmode.clock, testmode.key_suffix
    testmode.turn_to(checked_clock(clock), f"|test={secrets.token_hex(8)}")
    try:
        yield
    finally:
        testmode.turn_to(*before)
