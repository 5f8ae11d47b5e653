"""The time now, in whole microseconds. The only place that reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["SECOND", "Clock", "checked_clock", "now_us", "to_seconds", "to_us"]

Clock = Callable[[], int]
"""Anything that returns the time in whole microseconds since 1970."""

SECOND = 1_000_000

# One wall reading, then the monotonic clock: a wall clock that is stepped hands out no quota and locks nobody.
_WALL_AT_ZERO = time.time_ns() - time.monotonic_ns()


def now_us() -> int:
    """Microseconds since 1970; never runs backwards within a process."""
    return (time.monotonic_ns() + _WALL_AT_ZERO) // 1000


def to_us(seconds: float) -> int:
    """Seconds as the nearest whole microsecond: ``to_us(1.5)`` is ``1_500_000``."""
    return round(seconds * SECOND)


def to_seconds(us: int) -> float:
    """Whole microseconds as seconds: ``to_seconds(1_500_000)`` is ``1.5``."""
    return us / SECOND


def checked_clock(clock: Clock) -> Clock:
    """The clock itself, after one reading that proves its unit; ``TypeError`` for one that returns seconds."""
    if type(clock()) is not int:
        raise TypeError(
            f"a clock returns whole microseconds as an int, {clock!r} returned {clock()!r};"
            " for example: lambda: time.time_ns() // 1000, or ratelimit_mw.testing.ManualClock"
        )
    return clock
