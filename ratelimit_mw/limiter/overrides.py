"""``Overrides``: other limits for single clients. One record in the store has them all, and each process follows it."""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import Future, wait
from typing import Final
from weakref import WeakValueDictionary

from ..clock import SECOND, monotonic
from ..errors import ConfigError, RateLimitError, StateError, StoreError
from ..forksafe import run_in_child
from ..rules.overrides import ClientOverride, dump_overrides, load_overrides
from ..rules.ruleset import RuleSet
from ..stores import Store
from ..stores.base import MAX_RECORD
from ..stores.blocking import Call, run_beside, run_once, twins
from ..stores.url import redacted_url
from .clocks import Clocks
from .follower import NEVER, Follower
from .reloads import Reloads
from .remote.store import RemoteStore
from .tasks import Tasks

_RECORD: Final = "overrides"
_TRIES: Final = 100
_TRY_AGAIN: Final = 2.0  # seconds
_RESTLESS: Final = "other processes kept changing the overrides. Try again"
_RIGHTS: Final = "Check that the store is reachable, and that its login may use all keys with its prefix"
_DAMAGE: Final = "To remove all overrides, run `ratelimit-mw override clear`"
_log = logging.getLogger("ratelimit_mw")


def keeps_records(store: Store) -> bool:
    """Return whether a store keeps records. One of an application may not."""
    return type(store).read_record is not Store.read_record


class Overrides:
    """The overrides of a limiter, as far as this process knows them. A change replaces the tables of the rules."""

    def __init__(self, store: Store, clocks: Clocks, reloads: Reloads) -> None:
        self._store, self._clocks, self._reloads = store, clocks, reloads
        self.record: bytes | None = None
        """The record that is active."""
        self._active: tuple[ClientOverride, ...] = ()
        self._reported: frozenset[tuple[str, str]] = frozenset()
        self._is_shared = keeps_records(store)
        reloads.checks.append(self._apply)
        _everywhere[id(self)] = self

    async def follow(self, call: Call) -> None:
        """Put the record of the store into effect. If another one is active since the read, read again.

        A ban that has ended is put out of effect, too, because each request is slower while there are bans.
        """
        is_active = False
        while not is_active:
            known, now = self.record, self._clocks.time()
            record = await call(self._store, "read_record", _RECORD)
            if record == known and not any(each.by and each.has_ended(now) for each in self._active):
                return
            is_active = await run_beside(call, self._use, record, known)

    def _use(self, record: bytes | None, before: bytes | None) -> bool:
        """Put a record into effect. Return False if it is no longer ``before`` that was active before the read.

        A damaged record raises ``ValueError``.
        """
        with self._reloads.lock:
            if self.record is not before:
                return False
            now = self._clocks.time()
            self._active = tuple(each for each in load_overrides(record) if not (each.by and each.has_ended(now)))
            if record is None:
                name = redacted_url(self._store)
                _log.warning("store %s has lost the overrides; the limits of the rules apply", name)
            self._apply(self._reloads.rules)
            self._reloads.renew_users()
            self.record = record  # last: after an error, the next read tries again
            return True

    async def change(self, call: Call, rule: str, key: str, new: ClientOverride | None = None) -> bool:
        """Replace the override of a client in the store, or remove it. Return whether there was one."""
        for _ in range(_TRIES):
            record, before = await self._read(call)
            others = [each for each in before if (each.rule, each.key) != (rule, key)]
            if await self._write(call, [*others, *([new] if new else [])], record):
                return len(others) < len(before)
        raise StoreError(_RESTLESS)

    async def clear(self, call: Call) -> None:
        """Remove all overrides from the store, even where their record is damaged."""
        for _ in range(_TRIES):
            try:
                record = await call(self._store, "read_record", _RECORD)
            except StateError as error:
                await call(self._store, "forget", error.keys)
                record = None
            if await self._write(call, [], record):
                return
        raise StoreError(_RESTLESS)

    async def read(self, call: Call) -> list[ClientOverride]:
        """Return the overrides in the store, without those that have ended."""
        return [each for each in (await self._read(call))[1] if not each.by]

    async def bans(self, call: Call) -> list[ClientOverride]:
        """Return the bans from all rules, without those that have ended. A store without records has none."""
        every = (await self._read(call))[1] if self._is_shared else ()
        return [each for each in every if each.by]

    async def _read(self, call: Call) -> tuple[bytes | None, list[ClientOverride]]:
        """Return the record in the store, and all that has not ended."""
        try:
            record = await call(self._store, "read_record", _RECORD)
            return record, [each for each in load_overrides(record) if not each.has_ended(self._clocks.time())]
        except ConfigError:
            raise
        except (StateError, ValueError) as error:
            hint = "clear_overrides(), or the command `override clear`, removes all of them"
            name = redacted_url(self._store)
            problem = f"store {name}: {error}. Workers keep the last overrides they know. {hint}"
            raise StoreError(problem) from None

    def _apply(self, rules: RuleSet) -> None:
        """Replace the overrides of rules. Log those that the rules cannot have, once."""
        problems = rules.override(self._active, self._clocks.time)
        for name, problem in sorted(problems - self._reported):
            _log.warning("rule %r: overrides of clients are not active: %s", name, problem)
        self._reported = frozenset(problems)

    async def _write(self, call: Call, overrides: list[ClientOverride], before: bytes | None) -> bool:
        """Write the record, and follow it in this process. False if another process has changed it since the read."""
        record = dump_overrides(overrides)
        if len(record) > MAX_RECORD:
            hint = "Put the limits of many clients into per_key, or into a function"
            raise ConfigError(f"the override record is full ({len(overrides) - 1:,} overrides). {hint}")
        try:
            is_written = bool(await call(self._store, "write_record", _RECORD, record, before))
        except StoreError as error:  # the store may have made the change, or may still make it
            hint = "To be sure, make the same change again, or list the overrides"
            raise StoreError(f"{error}. The change of the overrides may be in effect. {hint}") from error
        if is_written:
            for each in [reference() for reference in _everywhere.valuerefs()]:
                if each is not None and each._store is self._store and each._is_shared:
                    await each.follow(call)
        return is_written


_everywhere: Final = WeakValueDictionary[int, Overrides]()
"""The overrides of all limiters of this process, by their ids. Those with one store object apply a change at once."""


class RecordFollower(Follower):
    """Reads the overrides in a store that other processes change.

    A worker begins with the overrides: it reads them when it opens the store. Then, once per ``reload_interval``, a
    request starts a task or a thread that reads their record. The first request after a longer pause waits for the
    read. While the store is unreachable, or the record is damaged, the last known overrides stay active.
    """

    def __init__(self, overrides: Overrides, remote: RemoteStore, reloads: Reloads, tasks: Tasks) -> None:
        self._overrides, self._remote, self._reloads, self._tasks = overrides, remote, reloads, tasks
        self._has_read = False
        self._start_over()
        run_in_child(self, RecordFollower._start_over)

    def _start_over(self) -> None:
        """A forked child starts over: it opens the store itself."""
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
            if waits:
                self._seen_at = self._begun_at
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
