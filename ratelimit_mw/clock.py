"""The time in whole microseconds. This is the only module that reads the real clock for decisions.

Test tools replace clocks, but none of these. With a clock in another year, a limiter would reject a client for years.
The tool freezegun replaces only attributes of modules, and time-machine only the wall clock, with a way around it.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Final, cast

from .errors import ConfigError

Clock = Callable[[], int]
"""A function that returns the time in whole microseconds since 1970."""

SECOND = 1_000_000


def _real(name: str, read: str, clock: str) -> Any:
    """Return a function of ``time``. If a test tool has replaced the function, another one reads the same clock."""
    function = getattr(time, name)
    if isinstance(function, BuiltinFunctionType):
        return function
    return partial(getattr(time, read), getattr(time, clock))


class _Machine:
    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = _real("monotonic", "clock_gettime", "CLOCK_MONOTONIC")
        self.monotonic_ns: Callable[[], int] = _real("monotonic_ns", "clock_gettime_ns", "CLOCK_MONOTONIC")
        self._time_ns: Callable[[], int] = _real("time_ns", "clock_gettime_ns", "CLOCK_REALTIME")

    def time_ns(self) -> int:
        time_machine = getattr(sys.modules.get("time_machine"), "escape_hatch", None)
        if time_machine and time_machine.is_travelling():
            return int(time_machine.time.time_ns())
        return self._time_ns()


machine: Final = _Machine()
"""The clocks of the machine, with the names of ``time``."""

# The wall clock is read once; from then on the monotonic clock counts. A wall clock that is stepped changes no count.
WALL_AT_ZERO: Final = machine.time_ns() - machine.monotonic_ns()
"""The nanoseconds from 1970 to the zero of the monotonic clock."""

monotonic: Callable[[], float] = partial(machine.monotonic)
"""Return the seconds of the machine's monotonic clock."""


def now_us() -> int:
    """Return microseconds since 1970. The time never goes back within a process."""
    return (machine.monotonic_ns() + WALL_AT_ZERO) // 1000


def wall_us() -> int:
    """Return microseconds since 1970 by the wall clock, the clock that several machines can agree on."""
    return machine.time_ns() // 1000


def to_us(seconds: float) -> int:
    """Return seconds as the nearest whole microsecond: ``to_us(1.5)`` is ``1_500_000``."""
    return round(seconds * SECOND)


def checked_clock(clock: Any) -> Clock:
    """Return the clock; ``TypeError`` if it returns no int, such as one in seconds, ``ConfigError`` for no function."""
    fix = "Use lambda: time.time_ns() // 1000, or ratelimit_mw.testing.ManualClock"
    if not callable(clock):
        raise ConfigError(f"expected a function that returns whole microseconds; got {clock!r}. {fix}", "clock")
    if type(now := clock()) is not int:
        raise TypeError(f"a clock must return whole microseconds as an int, {clock!r} returned {now!r}. {fix}")
    return cast(Clock, clock)
