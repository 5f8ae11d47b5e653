"""The state of a circuit breaker: when to stop calling a failing store, and when to probe it. No I/O."""

from __future__ import annotations

import random
import threading
from typing import Final

from ..clock import SECOND
from ..forksafe import create_lock

_MAX_FAILURES: Final = 3
_FIRST_PROBE: Final = SECOND // 4
_LAST_PROBE: Final = SECOND


class Breaker:
    """Opens after three failures in a row, and closes when a probe succeeds.

    The first probe is due 0.25 s after opening; the interval doubles up to 1 s. Each interval is shortened by up to a
    fifth at random, so that the processes of a fleet do not probe at the same moment. Times are whole microseconds of
    any steady clock.

    Attributes:
        open: Whether the breaker is open now.
        openings: How often the breaker has opened, for metrics.
        failures: The failures in a row so far. A call that succeeds sets it to 0.
        epoch: Changes with each failure that counts and each recovery. Note it before a call, and pass it to
            ``failed``: calls in flight together count as one failure, a call from before a recovery as none.
    """

    def __init__(self) -> None:
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._opened_at = self._probe_at = 0
        self._interval = _FIRST_PROBE
        self.open = False
        self.openings = self.failures = self.epoch = 0

    def failed(self, epoch: int, now: int) -> bool:
        """Record a call that failed. Return True when the failure opens the breaker."""
        with self._lock:
            if epoch != self.epoch:
                return False
            self.epoch += 1
            self.failures += 1
            if self.open or self.failures < _MAX_FAILURES:
                return False
            self.open, self._opened_at = True, now
            self.openings += 1
            self._schedule_probe(now, _FIRST_PROBE)
            return True

    def probe_in(self, now: int) -> int:
        """Return the time until the next probe is due."""
        return max(0, self._probe_at - now)

    def takes_probe(self, now: int) -> bool:
        """Return True when the caller must probe the store now. One caller at a time gets True."""
        if now < self._probe_at:
            return False
        with self._lock:
            if not self.open or now < self._probe_at:
                return False
            self._schedule_probe(now, min(2 * self._interval, _LAST_PROBE))
            return True

    def close(self, now: int) -> int:
        """Record a probe that succeeded. Return how long the breaker was open, 0 when it was closed."""
        with self._lock:
            self.failures = 0
            if not self.open:
                return 0
            self.open = False
            self.epoch += 1
            return now - self._opened_at

    def _schedule_probe(self, now: int, interval: int) -> None:
        jitter = random.randrange(interval // 5)  # noqa: S311 - it spreads probes and hides nothing
        self._interval, self._probe_at = interval, now + interval - jitter
