"""``Tally`` counts decisions, and logs at most once a minute how many of them were made without the store."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Final

from ..forksafe import create_lock

_REPORT_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class Tally:
    """The decisions of a limiter with a store. The next decision after a minute writes the line: no thread waits."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._lock = create_lock(self, "_lock", threading.Lock)
        self.decisions = 0
        """All decisions. Threads may lose a few: the number is for a log line."""
        self.local = 0
        """The decisions without the store."""
        self._before = (0, 0)
        self._since = 0.0
        self.report_at = 0.0
        """The time of the next line, by the monotonic clock; 0.0 when there is nothing to report."""

    def add_local(self, count: int) -> None:
        with self._lock:
            if not self.report_at:
                self._before = self.decisions - count, self.local
                self._since = monotonic()
                self.report_at = self._since + _REPORT_EVERY
            self.local += count

    def report(self, is_last: bool = False) -> None:
        """Write the line if it is due, or if it is the last one and there is something to report."""
        now = monotonic()
        with self._lock:
            if not self.report_at or (now < self.report_at and not is_last):
                return
            self.report_at = 0.0
            decisions, local = self.decisions - self._before[0], self.local - self._before[1]
        message = "%s of %s decisions in %.0f s without the store %s"
        _log.warning(message, f"{local:,}", f"{decisions:,}", now - self._since, self._store)
