"""``OverrideReader``: follows the overrides in the store that other processes have changed.

A worker begins with the overrides: it reads them when it opens the store. Then, once per ``reload_interval``, a request
starts a task or a thread that reads their record. The first request after a longer pause waits for the read. While the
store is unreachable, or the record is damaged, the last known overrides stay active.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from ...clock import SECOND, monotonic
from ...errors import RateLimitError, StateError
from ...forksafe import run_in_child
from ...stores import Store, redacted_url
from ...stores.background import run_once
from ...stores.blocking import Call, async_call, blocking_call, run_blocking
from ..watch import Watch
from .record import RECORD

if TYPE_CHECKING:
    from .overrides import RunTimeOverrides

_TRY_AGAIN: Final = 2.0  # seconds
_RIGHTS: Final = "Check that the store is reachable, and that its login may use all keys with its prefix"
_DAMAGE: Final = "To remove all overrides, run `ratelimit-mw override clear`"
_log = logging.getLogger("ratelimit_mw")


def keeps_records(store: Store) -> bool:
    """Return whether a store keeps records. One of an application may not."""
    return type(store).read_record is not Store.read_record


class OverrideReader(Watch):
    """Reads the overrides of a limiter."""

    def __init__(self, limiter: RunTimeOverrides) -> None:
        self._limiter = limiter
        self._has_read = False
        self._start_over()
        run_in_child(self, OverrideReader._start_over)

    def _start_over(self) -> None:
        """A forked child starts over: it opens the store itself."""
        self._problem: type[Exception] | None = None
        self._thread: Future[None] | None = None
        self._task: asyncio.Future[None] | None = None
        self._begun_at = self._seen_at = -math.inf

    @property
    def interval(self) -> float:
        """Without ``reload_interval``, it is short until a read has succeeded, and then without end."""
        return self._limiter.settings.reload_interval / SECOND or (math.inf if self._has_read else _TRY_AGAIN)

    def begin(self) -> None:
        """Read the overrides in a task or a thread. The first request of a process waits until they are active."""
        if self._limiter.is_starting:
            self._limiter.start()
            return
        self._begun_at = monotonic()
        if not self._limiter._must_not_wait():
            self._read_in_thread()
        elif self._task is None or self._task.done():
            # An async view of Flask, or of Django under WSGI, has a loop of its own, which cancels tasks at its end.
            self._task = self._limiter._start(self.aread())
            self._task.add_done_callback(lambda task: self._read_in_thread() if task.cancelled() else None)

    async def catch_up(self, call: Call) -> None:
        breaker = self._limiter.breaker
        if not self._limiter.rules.enabled or (breaker is not None and breaker.open):
            self._seen_at = monotonic()  # no request waits for a store that is known to be away
            self.begin()
        else:
            await call(self._limiter, "start")

    def close(self) -> None:
        """Wait for a thread that reads now, so that it leaves no connection open."""
        if self._thread is not None:
            wait([self._thread])

    def read(self) -> None:
        """Read the overrides now, and put them into effect. A failure is logged."""
        with self._reporting():
            run_blocking(self.follow(blocking_call))

    async def aread(self) -> None:
        """Async form of ``read``."""
        with self._reporting():
            while (use := await self._find(async_call)) and not await asyncio.to_thread(use):
                pass

    async def follow(self, call: Call) -> None:
        """Put the overrides of the store into effect. If others are active since the read, read again."""
        while (use := await self._find(call)) and not use():
            pass

    async def _find(self, call: Call) -> Callable[[], bool] | None:
        """Return the function that puts the record into effect; None if it is active."""
        known = self._limiter.override_record
        record = await call(self._limiter.store, "read_record", RECORD)
        self._has_read = True
        return None if record == known else partial(self._limiter.use_overrides, record, known)

    def _read_in_thread(self) -> None:
        self._thread = run_once(self, self.read)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log a problem once, and its end. The limiter logs a store that fails for decisions, too."""
        begun_at = monotonic()
        try:
            yield
        except Exception as error:
            begun_at = monotonic()  # a store that fails slowly is not asked by each request
            is_known = isinstance(error, RateLimitError | ValueError)
            is_damaged = isinstance(error, StateError) or not isinstance(error, RateLimitError)
            breaker = self._limiter.breaker
            is_quiet = isinstance(error, RateLimitError) and breaker and (breaker.open or breaker.failures)
            if not is_quiet and type(error) is not self._problem:
                name, fix = redacted_url(self._limiter.store), _DAMAGE if is_damaged else _RIGHTS
                message = "store %s: cannot read the overrides (%s). The last known overrides stay active. %s"
                _log.warning(message, name, error, fix, exc_info=None if is_known else error)
                self._problem = type(error)
        else:
            if self._problem is not None:
                _log.warning("store %s: the overrides can be read again", redacted_url(self._limiter.store))
                self._problem = None
        self._seen_at = max(self._seen_at, begun_at)
