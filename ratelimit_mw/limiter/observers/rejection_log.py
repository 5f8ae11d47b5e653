"""``RejectionLog``: an observer that writes a line for each rejected request, and limits the number of its lines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ...clock import monotonic
from ...forksafe import create_lock
from .events import Event, RequestOutcomes

_LINES: Final = 10
_LONG: Final = 100.0  # seconds, from which the log leaves out their fraction
_log = logging.getLogger("ratelimit_mw.events")


class RejectionLog:
    """Log rejections, and requests that rules in shadow mode would have rejected. It is an observer.

    ``log_rejections`` is one, for all limiters of a process.

    The logger is ``ratelimit_mw.events``. Fields of a record: ``ratelimit_outcome``, ``ratelimit_rules``,
    ``ratelimit_method``, ``ratelimit_endpoint``, ``ratelimit_wait``, ``ratelimit_store``, ``ratelimit_features`` and
    ``ratelimit_left_out``.

    Args:
        lines: The maximum number of lines per second. The next line contains the number of requests that were left out.
        clock: A function that returns seconds.
    """

    def __init__(self, lines: int = _LINES, clock: Callable[[], float] = monotonic) -> None:
        self._most = lines
        self._clock = clock
        self._began = clock()
        self._lines = self._left_out = 0
        self._lock = create_lock(self, "_lock", threading.Lock)

    @staticmethod
    def needs_event(request: RequestOutcomes | Event) -> bool:
        """Return whether a request is logged.

        Args:
            request: Its outcomes, or its event.
        """
        return request.outcome != "allowed"

    def __call__(self, event: Event) -> None:
        if not self.needs_event(event):
            return
        with self._lock:
            if (now := self._clock()) >= self._began + 1:
                self._began, self._lines = now, 0
            if self._lines >= self._most:
                self._left_out += 1
                return
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        fields = {
            "outcome": event.outcome,
            "rules": list(event.limited_by),
            "method": event.method,
            "endpoint": event.endpoint,
            "wait": event.wait,
            "store": event.store,
            "features": dict(event.features),
            "left_out": left_out,
        }
        extra = {f"ratelimit_{name}": value for name, value in fields.items()}
        _log.warning("%s%s", _line(event), f"; {left_out} more left out" * bool(left_out), extra=extra)


def _line(event: Event) -> str:
    by = f" by {', '.join(event.limited_by)}" if event.limited_by else ""
    where = " ".join(filter(None, (event.method, event.endpoint)))
    seconds = event.wait if event.is_rejected else None
    wait = "" if seconds is None else f"wait {seconds:.0f} s" if seconds >= _LONG else f"wait {seconds:.3g} s"
    features = (f"{name} {value!r}" for name, value in event.features.items())  # escaped: clients write them
    return "; ".join(filter(None, (f"{event.outcome}{by}", where, wait, *features)))


log_rejections: Final = RejectionLog()
"""Logs the rejections of this process. It is an observer, for all limiters."""
