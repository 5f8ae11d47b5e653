"""A circuit breaker: when to leave a failing store alone, and when to ask whether it answers again. Pure state."""

from __future__ import annotations

import random
import threading
from typing import Final

from ..clock import SECOND
from ..forksafe import create_lock

__all__ = ["Breaker"]

_FAILURES: Final = 3
_FIRST_PROBE: Final = SECOND // 4
_LAST_PROBE: Final = SECOND


class Breaker:
    """Closed while the store answers; open after three failures, one after the other, until a probe has succeeded.

    Probes come 0.25 s after opening, then ever later, but at most a second apart; each with up to a fifth taken
    off at random, so that a fleet does not ask as one. Times are whole microseconds of any steady clock.
    For metrics: ``open`` now, ``openings`` so far.
    """

    def __init__(self) -> None:
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._failures = 0
        self._known_at = 0
        self._opened_at = 0
        self._probe_at = 0
        self._wait = _FIRST_PROBE
        self.open = False
        self.openings = 0

    def succeeded(self) -> None:
        """A call was answered."""
        if self._failures:
            self._failures = 0

    def failed(self, began: int, now: int) -> bool:
        """A call that began then was not answered; True when that opens the breaker.

        Calls that were out together fail as one, and what began before the breaker closed says nothing of now.
        """
        with self._lock:
            if began < self._known_at:
                return False
            self._known_at = now
            self._failures += 1
            if self.open or self._failures < _FAILURES:
                return False
            self.open, self._opened_at, self._wait = True, now, _FIRST_PROBE
            self.openings += 1
            self._probe_at = now + self._soon()
            return True

    def takes_probe(self, now: int) -> bool:
        """Whether the caller should probe now; one caller is told so at a time."""
        if now < self._probe_at:
            return False
        with self._lock:
            if not self.open or now < self._probe_at:
                return False
            self._wait = min(2 * self._wait, _LAST_PROBE)
            self._probe_at = now + self._soon()
            return True

    def close(self, now: int) -> int:
        """A probe was answered; how long the breaker was open, 0 when it was not."""
        with self._lock:
            self._failures = 0
            if not self.open:
                return 0
            self.open = False
            self._known_at = now
            return now - self._opened_at

    def _soon(self) -> int:
        return self._wait - random.randrange(self._wait // 5)  # noqa: S311 - it spreads probes, hides nothing
