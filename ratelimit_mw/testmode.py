"""The test mode of this process: limits off, or limits on a test's clock. Neither is active by default."""

from collections.abc import Iterator
from contextlib import contextmanager

from .clock import Clock, wall_us


class _TestMode:
    """The state of the test mode. All threads share it, because a test client may run the application in a thread."""

    off = 0  # How many ``limits_off`` blocks are active.
    clock: Clock | None = None  # The clock of all limiters that were given none.
    key_suffix = ""  # Ends all keys of those limiters, so that a test shares no state.

    def __init__(self) -> None:
        self.active = False  # Whether ``off`` or ``clock`` is set. Each request reads it, faster than from the class.

    def turn_off(self, more: int) -> None:
        self.off += more
        self.active = bool(self.off or self.clock)

    def set_clock(self, clock: Clock | None, key_suffix: str) -> None:
        self.clock, self.key_suffix = clock, key_suffix
        self.active = bool(self.off or self.clock)


testmode = _TestMode()


def wall_clock() -> int:
    """Return the time in whole microseconds: the test's, or that of the wall clock, which may be corrected."""
    clock = testmode.clock
    return wall_us() if clock is None else clock()


@contextmanager
def limits_off() -> Iterator[None]:
    """Return a context manager that turns all limits off: each request is allowed, and no header is added.

    Example:
        >>> with limits_off():
        ...     testmode.off
        1
    """
    testmode.turn_off(1)
    try:
        yield
    finally:
        testmode.turn_off(-1)
