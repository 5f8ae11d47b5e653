"""The time in whole microseconds. This is the only module that reads the real clock for decisions."""

import time
from collections.abc import Callable
from typing import Any, cast

from .errors import ConfigError

Clock = Callable[[], int]
"""A function that returns the time in whole microseconds since 1970."""

SECOND = 1_000_000

# The wall clock is read once; from then on the monotonic clock counts. A wall clock that is stepped changes no limit.
_WALL_AT_ZERO = time.time_ns() - time.monotonic_ns()


def now_us() -> int:
    """Return microseconds since 1970. The time never goes back within a process."""
    return (time.monotonic_ns() + _WALL_AT_ZERO) // 1000


def fast_clock(clock: Clock) -> tuple[Clock, Callable[[int], int]]:
    """Return a faster clock of the same time, and a function that turns microseconds since 1970 into its unit.

    For ``now_us``, it is the monotonic clock in nanoseconds, which takes a third of the time. Another clock is returned
    as it is.
    """
    return (time.monotonic_ns, _to_monotonic_ns) if clock is now_us else (clock, int)


def _to_monotonic_ns(microseconds: int) -> int:
    return microseconds * 1000 - _WALL_AT_ZERO


def to_us(seconds: float) -> int:
    """Return seconds as the nearest whole microsecond: ``to_us(1.5)`` is ``1_500_000``."""
    return round(seconds * SECOND)


def checked_clock(clock: Any) -> Clock:
    """Return the clock. Raise ``TypeError`` unless it returns an int: a clock in seconds returns a float."""
    if not callable(clock):
        fix = "Use lambda: time.time_ns() // 1000, or ratelimit_mw.testing.ManualClock"
        raise ConfigError(f"expected a function that returns whole microseconds; got {clock!r}. {fix}", "clock")
    if type(clock()) is not int:
        raise TypeError(
            f"a clock must return whole microseconds as an int, {clock!r} returned {clock()!r}."
            " Use lambda: time.time_ns() // 1000, or ratelimit_mw.testing.ManualClock"
        )
    return cast(Clock, clock)
