"""What tests of applications throw: limits off, or on a clock of the test's. Neither is, unless somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import Clock

__all__ = ["limits_off", "testmode"]


class _TestMode:
    """Of this process and all its threads, as a test client may run the application in one.

    ``off`` counts who wants limits off. ``clock`` is for limiters that were given none, whose keys then have
    ``key_suffix``: what a test counts is nobody else's. ``active``: there is any of it.
    """

    off = 0
    clock: Clock | None = None
    key_suffix = ""

    def __init__(self) -> None:
        self.active = False

    def turn_off(self, more: int) -> None:
        self.off += more
        self.active = bool(self.off or self.clock)

    def turn_to(self, clock: Clock | None, key_suffix: str) -> None:
        self.clock, self.key_suffix = clock, key_suffix
        self.active = bool(self.off or self.clock)


testmode = _TestMode()


@contextmanager
def limits_off() -> Iterator[None]:
    """Within this block every request is allowed, no rule looks at it and no header is added.

    >>> with limits_off():
    ...     testmode.off
    1
    """
    testmode.turn_off(1)
    try:
        yield
    finally:
        testmode.turn_off(-1)
