"""``Clocks``: the times of a limiter, and the mark of keys that a test's clock needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..clock import Clock


class Clocks(NamedTuple):
    """The times of a limiter.

    Attributes:
        own: The clock that the limiter was given; None without one.
        time: Returns the time now, in microseconds since 1970.
        now: Returns the time to pass to the store; None for the store's own time.
        key_suffix: Returns the end of all keys, when a test has put the limiter on its clock.
    """

    own: Clock | None
    time: Clock
    now: Callable[[], int | None]
    key_suffix: Callable[[], str]
