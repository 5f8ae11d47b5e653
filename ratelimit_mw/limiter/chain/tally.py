"""``Tally`` counts decisions, and logs at most once a minute how many of them were made without the store."""

from __future__ import annotations

import logging
import threading
from typing import Final

from ...clock import monotonic
from ...forksafe import create_lock

_REPORT_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class Tally:
    """The decisions of a limiter with a store. The next decision after a minute writes the line: no thread waits."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._lock = create_lock(self, "_lock", threading.Lock)
        self.local = 0
        """The decisions without the store."""
        self._before = self._decisions = 0
        self._since = 0.0
        self.report_at = 0.0
        """The time of the next line, by the monotonic clock; 0.0 when there is nothing to report."""

    def add(self, count: int) -> None:
        """Count decisions of the store while there is something to report. Write the line if it is due."""
        with self._lock:
            self._decisions += count
        if monotonic() >= self.report_at:
            self.report()

    def add_local(self, count: int) -> None:
        """Count decisions without the store."""
        with self._lock:
            if not self.report_at:
                self._before, self._decisions, self._since = self.local, 0, monotonic()
                self.report_at = self._since + _REPORT_EVERY
            self.local += count
        self.add(count)

    def report(self) -> None:
        """Write the line if there is anything to report."""
        with self._lock:
            if not self.report_at:
                return
            self.report_at = 0.0
            decisions, local, seconds = self._decisions, self.local - self._before, monotonic() - self._since
        message = "%s of %s decisions in %.0f s were made without the store %s"
        _log.warning(message, f"{local:,}", f"{decisions:,}", seconds, self._store)
