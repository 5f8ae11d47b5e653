"""``Clocks``: the times of a limiter, and the mark of keys that a test's clock needs."""

from __future__ import annotations

from ..clock import Clock, checked_clock
from ..testmode import testmode, wall_clock


class Clocks:
    """The times of a limiter that was given a clock, or none. Then a test may put it on its own."""

    def __init__(self, own: Clock | None) -> None:
        self.own = None if own is None else checked_clock(own)
        self.time: Clock = self.own or wall_clock
        """Returns the time now, in microseconds since 1970. Schedules and the ends of overrides follow its steps."""

    def now(self) -> int | None:
        """Return the time to pass to the store; None for the store's own time."""
        return clock() if (clock := self.own or testmode.clock) else None

    def key_suffix(self) -> str:
        """Return the end of all keys, when a test has put the limiter on its clock."""
        return testmode.key_suffix if self.own is None else ""
