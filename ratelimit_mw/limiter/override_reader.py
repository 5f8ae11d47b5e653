"""``OverrideReader``: follows the overrides in the store that other processes have changed.

Once per ``reload_interval``, a request starts a thread that reads one record. A worker begins with the overrides: it
reads them at its start, or at its first request. While the store is away, or the record is
damaged, the last known overrides stay active.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..clock import SECOND
from ..errors import RateLimitError
from ..forksafe import create_lock
from ..stores import Store
from ..stores.background import run_once
from .slot_queues import is_on_event_loop

if TYPE_CHECKING:
    from .overrides import RunTimeOverrides

RECORD: Final = "overrides"
_log = logging.getLogger("ratelimit_mw")


class Changing:
    """A lock of this process, held from a read or a change of overrides until they are active.

    So no thread puts the overrides of an earlier read into effect after those of a later change.
    """

    def __init__(self) -> None:
        self.lock = create_lock(self, "lock", threading.RLock)


CHANGING: Final = Changing()


def keeps_records(store: Store) -> bool:
    """Return whether a store keeps records. One of an application may not."""
    return type(store).read_record is not Store.read_record


def name_of(store: Store) -> str:
    """Return the name of a store in the log."""
    return store.name or type(store).__name__


class OverrideReader:
    """Reads the overrides of a limiter, the first time at its first request."""

    def __init__(self, limiter: RunTimeOverrides) -> None:
        self._limiter = limiter
        self._is_open = self._is_closed = False
        self._problem: type[Exception] | None = None
        self.due_at = 0.0

    def look(self) -> None:
        """Start a thread that reads the record. The first request waits for it, but never on an event loop."""
        is_first = not self._is_open
        self._schedule()
        self._is_open, self._is_closed = True, False
        if is_first and not is_on_event_loop():
            self._limiter.start()
        else:
            run_once(self, partial(self._read, is_first))

    def hasten(self) -> None:
        """Look no later than after ``reload_interval``, which may have changed."""
        self.due_at = min(self.due_at, monotonic() + self._interval)

    def close(self) -> None:
        """Let a thread that reads now close its connection. The next look opens the store again."""
        self._is_closed = True

    def read(self) -> None:
        """Read the record now. A store that cannot be reached is logged."""
        self._schedule()
        self._is_open = True
        with CHANGING.lock, self._keeping_last():
            self._limiter.use_overrides(self._limiter.store.read_record(RECORD))

    def _read(self, is_first: bool) -> None:
        if is_first:  # the connect may take longer than a call
            with suppress(RateLimitError):
                self._limiter.store.start()
        self.read()
        if self._is_closed:
            self._limiter.store.close()

    def _schedule(self) -> None:
        self.due_at = monotonic() + self._interval

    @property
    def _interval(self) -> float:
        return self._limiter.settings.reload_interval / SECOND or math.inf

    @contextmanager
    def _keeping_last(self) -> Iterator[None]:
        """Log a problem once, and its end. Without known overrides, the log of the limiter on its store is enough."""
        try:
            yield
        except Exception as error:
            is_known = isinstance(error, RateLimitError | ValueError)
            is_quiet = isinstance(error, RateLimitError) and not self._limiter.has_overrides
            if not is_quiet and type(error) is not self._problem:
                message = "store %s: cannot read the overrides (%s). The last known overrides stay active"
                _log.warning(message, name_of(self._limiter.store), error, exc_info=None if is_known else error)
                self._problem = type(error)
        else:
            if self._problem is not None:
                _log.warning("store %s: the overrides are read again", name_of(self._limiter.store))
                self._problem = None
