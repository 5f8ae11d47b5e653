"""``RecordFollower``: reads the overrides in a store again, because other processes change them."""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import Future, wait
from typing import Final

from ...clock import SECOND, monotonic
from ...errors import RateLimitError, StateError
from ...runtime.blocking import Call, run_once, twins
from ...runtime.forksafe import run_in_child
from ..overrides import Overrides
from ..reloads import Reloads
from ..remote.store import RemoteStore
from ..tasks import Tasks
from .follower import NEVER, Follower

_TRY_AGAIN: Final = 2.0  # seconds
_RIGHTS: Final = "Check that the store is reachable, and that its login may use all keys with its prefix"
_DAMAGE: Final = "To remove all overrides, run `ratelimit-mw override clear`"
_log = logging.getLogger("ratelimit_mw")


class RecordFollower(Follower):
    """Reads the overrides in a store that other processes change.

    A worker begins with the overrides: it reads them when it opens the store. Then, once per ``reload_interval``, a
    request starts a task or a thread that reads their record. The first request after a longer pause waits for the
    read. While the store is unreachable, or the record is damaged, the last known overrides stay active.
    """

    def __init__(self, overrides: Overrides, remote: RemoteStore, reloads: Reloads, tasks: Tasks) -> None:
        self._overrides, self._remote, self._reloads, self._tasks = overrides, remote, reloads, tasks
        self._start_over()
        run_in_child(self, RecordFollower._start_over)

    def _start_over(self) -> None:
        """A forked child starts over: it opens the store itself."""
        self._has_read = False
        self._problem: type[Exception] | None = None
        self._thread: Future[None] | None = None
        self._task: asyncio.Future[None] | None = None
        self._begun_at = self._seen_at = NEVER

    @property
    def interval(self) -> float:
        """Without ``reload_interval``, it is short until a read has succeeded, and then without end."""
        settings = self._reloads.settings
        if not settings.enabled:
            return math.inf
        return settings.reload_interval / SECOND or (math.inf if self._has_read else _TRY_AGAIN)

    async def look(self, call: Call, waits: bool) -> None:
        """Read the overrides in a task or a thread. The first request of a process waits until they are active.

        No request waits for a store that is known to be away.
        """
        if waits and not self._remote.breaker.open:
            await call(self._remote, "start")
        elif not self._remote.is_open:
            self._remote.start()
        else:
            self._begun_at = monotonic()
            if not self._tasks.must_not_wait:
                self._read_in_thread()
            elif self._task is None or self._task.done():
                self._task = self._tasks.start(self.aread(), self._read_in_thread)

    def close(self) -> None:
        """Wait for a thread that reads now, so that it leaves no connection open."""
        if self._thread is not None:
            wait([self._thread])

    async def _read(self, call: Call) -> None:
        """Read the overrides now, and put them into effect. A failure is logged."""
        begun_at = monotonic()
        try:
            await self._overrides.follow(call)
        except Exception as error:
            begun_at = monotonic()  # a store that fails slowly is not asked by each request
            self._report(error)
        else:
            self._has_read = True
            if self._problem is not None:
                _log.warning("store %s: the overrides can be read again", self._remote.breaker.name)
                self._problem = None
        self._seen_at = max(self._seen_at, begun_at)

    read, aread = twins(_read)

    def _read_in_thread(self) -> None:
        self._thread = run_once(self, self.read)

    def _report(self, error: Exception) -> None:
        """Log a problem once. The limiter logs a store that fails for decisions, too."""
        breaker, is_of_store = self._remote.breaker, isinstance(error, RateLimitError)
        if type(error) is self._problem or (is_of_store and (breaker.open or breaker.failures)):
            return
        self._problem = type(error)
        message = "store %s: cannot read the overrides (%s). The last known overrides stay active. %s"
        fix = _RIGHTS if is_of_store and not isinstance(error, StateError) else _DAMAGE
        is_known = isinstance(error, RateLimitError | ValueError)
        _log.warning(message, breaker.name, error, fix, exc_info=None if is_known else error)
