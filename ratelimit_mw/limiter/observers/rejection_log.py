"""``log_rejections``: an observer that writes a line for each rejected request, and limits the number of its lines."""

from __future__ import annotations

import logging
import threading
from typing import Final

from ...clock import monotonic
from ...runtime.forksafe import create_lock
from .events import Event, RequestOutcomes

_MAX_LINES: Final = 10  # per second
_LONG: Final = 100.0  # seconds, from which the log leaves out their fraction
_log = logging.getLogger("ratelimit_mw.events")


class _Lines:
    """The lines of this second."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._lines = self._left_out = 0
        self._lock = create_lock(self, "_lock", threading.Lock)

    def take(self) -> int | None:
        """Return how many requests were left out since the last line; None to leave out this one, too."""
        with self._lock:
            if (now := monotonic()) >= self._began + 1:
                self._began, self._lines = now, 0
            if self._lines >= _MAX_LINES:
                self._left_out += 1
                return None
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
            return left_out


_lines = _Lines()


def log_rejections(event: Event) -> None:
    """Log a rejection, or a request that a rule in shadow mode would have rejected. It is an observer.

    The logger is ``ratelimit_mw.events``. Fields of a record: ``ratelimit_outcome``, ``ratelimit_rules``,
    ``ratelimit_method``, ``ratelimit_endpoint``, ``ratelimit_wait``, ``ratelimit_store``, ``ratelimit_features`` and
    ``ratelimit_left_out``. A process logs at most 10 lines per second. The next line contains the number of requests
    that were left out.

    Args:
        event: The event of a request.
    """
    if not _is_logged(event) or (left_out := _lines.take()) is None:
        return
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


def _is_logged(request: RequestOutcomes | Event) -> bool:
    return request.outcome != "allowed"


vars(log_rejections).update(needs_event=_is_logged)


def _line(event: Event) -> str:
    by = f" by {', '.join(event.limited_by)}" if event.limited_by else ""
    where = " ".join(filter(None, (event.method, event.endpoint)))
    seconds = event.wait if event.is_rejected else None
    wait = "" if seconds is None else f"wait {seconds:.0f} s" if seconds >= _LONG else f"wait {seconds:.3g} s"
    features = (f"{name} {value!r}" for name, value in event.features.items())  # escaped: clients write them
    return "; ".join(filter(None, (f"{event.outcome}{by}", where, wait, *features)))
