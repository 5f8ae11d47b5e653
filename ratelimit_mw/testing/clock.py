"""`ManualClock` moves only when your test moves it; `limits_timed_by` puts the limits of an application on a clock."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from ..clock import SECOND, Clock, checked_clock, to_us
from ..testmode import testmode


class ManualClock:
    """A clock that moves only when you move it, exact to the microsecond.

    Args:
        seconds: The first time, in seconds since 1970.

    Example:
        >>> clock = ManualClock(1_000_000.0)
        >>> clock.advance(1.5)
        >>> clock, clock.time, clock()
        (ManualClock(1000001.5), 1000001.5, 1000001500000)
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._us = to_us(seconds)

    def __call__(self) -> int:
        """Return the time in whole microseconds, as a limiter expects from its clock."""
        return self._us

    def __repr__(self) -> str:
        return f"ManualClock({self.time})"

    @property
    def time(self) -> float:
        """The time in seconds since 1970."""
        return self._us / SECOND

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: How far to move. A negative number moves the clock back.
        """
        self._us += to_us(seconds)

    def set(self, seconds: float) -> None:
        """Move the clock to a time.

        Args:
            seconds: The new time, in seconds since 1970.
        """
        self._us = to_us(seconds)


@contextmanager
def limits_timed_by(clock: Clock) -> Iterator[None]:
    """Return a context manager that puts all limits on your clock, with empty counts, until its end.

    Every limiter without a clock of its own is affected, even an older one, with any store. Counts from
    outside the block are not visible inside it, and the other way round.

    Args:
        clock: A function that returns whole microseconds, such as a `ManualClock`.

    Raises:
        TypeError: The clock does not return whole microseconds.

    Example:
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
    testmode.set_clock(checked_clock(clock), f"|test={secrets.token_hex(8)}")
    try:
        yield
    finally:
        testmode.set_clock(*before)
