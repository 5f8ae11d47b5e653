"""``Breaker`` counts the failures of a store. While there are too many, it is open, and the store is not called."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from ...clock import SECOND, now_us
from ...errors import NoRoomError, StateError, StoreError
from ...runtime.forksafe import CHANCE, create_lock

_MAX_FAILURES: Final = 3
_FIRST_PROBE: Final = SECOND // 4
_LAST_PROBE: Final = SECOND
_log = logging.getLogger("ratelimit_mw")


class NotAskedError(StoreError):
    """The circuit breaker is open, so the store was not called."""


class Breaker:
    """The circuit breaker of a store. It makes no calls.

    It opens after three failures in a row. The first probe is due 0.25 s later; the interval doubles up to 1 s. Each
    interval is shortened by up to a fifth at random, so that the processes of a fleet do not probe together.

    Attributes:
        failures: The number of failures in a row so far.
        actions: How many rules have each ``on_store_error``, for the log.
        epoch: Changes with each failure that counts and each recovery. Note it before a call and pass it to
            ``count_failure``: concurrent calls count as one failure, a call from before a recovery as none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._opened_at = self._probe_at = self._interval = 0
        self.open = False
        self.failures = self.epoch = 0
        self.actions: Mapping[str, int] = {}
        self._last_error: StoreError | None = None
        self._has_warned = False

    def fail(self, error: StoreError, epoch: int) -> None:
        """Count a failed call. Log it when it opens the breaker. A store that replies has not failed."""
        self._last_error = error
        if isinstance(error, NoRoomError | StateError):
            self.failures = 0
        elif self.count_failure(epoch, now_us()):
            wait = (self._probe_at - self._opened_at) / SECOND
            actions = ", ".join(f"{number} {action}" for action, number in self.actions.items())
            message = "store %s unreachable (%s); applying on_store_error (rules: %s); next probe in %.1f s"
            _log.warning(message, self.name, error, actions, wait)

    def succeed(self) -> None:
        """Forget the failures in a row. Log once that some calls fail and others succeed, as at a full server."""
        self.failures = 0
        if not (self.open or self._has_warned):
            self._has_warned = True
            _log.warning(
                "store %s: some calls fail (%s) and others succeed; on_store_error applies to those that fail. Check"
                " whether it was restarted, or allows fewer connections than your threads need. This is logged once",
                self.name,
                self._last_error,
            )

    def count_failure(self, epoch: int, now: int) -> bool:
        """Count a failed call. Return True when it opens the breaker."""
        with self._lock:
            if epoch != self.epoch:
                return False
            self.epoch += 1
            self.failures += 1
            if self.open or self.failures < _MAX_FAILURES:
                return False
            self.open, self._opened_at = True, now
            self._schedule_probe(now, _FIRST_PROBE)
            return True

    def takes_probe(self, now: int) -> bool:
        """Return True when the caller must probe the store now. One caller at a time gets True."""
        with self._lock:
            if not self.open or now < self._probe_at:
                return False
            self._schedule_probe(now, min(2 * self._interval, _LAST_PROBE))
            return True

    def recover(self, now: int) -> None:
        """Close the breaker after a probe that succeeded."""
        with self._lock:
            was_open, self.open = self.open, False
            self.epoch += was_open
            self.failures = 0
        if was_open:
            _log.warning("store %s reachable again after %.1f s", self.name, (now - self._opened_at) / SECOND)

    def _schedule_probe(self, now: int, interval: int) -> None:
        jitter = CHANCE.randrange(interval // 5)
        self._interval, self._probe_at = interval, now + interval - jitter
