"""What tests of applications throw: limits off, or on a clock of the test's. Neither is, unless somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .clock import Clock

__all__ = ["limits_off", "switch"]


class _Switch:
    """Of this process and all its threads, as a test client may run the application in one.

    ``off`` counts who wants limits off. ``clock`` is for limiters that were given none, whose keys then have
    ``ending``: what a test counts is nobody else's. ``thrown``: there is any of it.
    """

    off = 0
    clock: Clock | None = None
    ending = ""

    def __init__(self) -> None:
        self.thrown = False

    def turn_off(self, more: int) -> None:
        self.off += more
        self.thrown = bool(self.off or self.clock)

    def turn_to(self, clock: Clock | None, ending: str) -> None:
        self.clock, self.ending = clock, ending
        self.thrown = bool(self.off or self.clock)


switch = _Switch()


@contextmanager
def limits_off() -> Iterator[None]:
    """Within this block every request is allowed, no rule looks at it and no header is added.

    >>> with limits_off():
    ...     switch.off
    1
    """
    switch.turn_off(1)
    try:
        yield
    finally:
        switch.turn_off(-1)
