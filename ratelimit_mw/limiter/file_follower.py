"""``FileFollower``: reloads all limiters of this process that have the same source of settings.

A request only compares the identity of the files, once per ``reload_interval``. A thread of its own reads and checks
files that have changed. Either all limiters take the new settings, or none of them does.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from asyncio import wait_for, wrap_future
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet, WeakValueDictionary

from ..clock import SECOND, machine, monotonic
from ..errors import ConfigError, RateLimitError
from ..forksafe import create_lock
from ..settings import Settings, missing_parts
from ..settings.files import FileState, Identity, Origin, identity_of, recording
from ..stores.background import run_once
from ..stores.blocking import Call
from .follower import Follower

_QUIET: Final = 1.0  # seconds without a change before files are read, because a writer may not be done
_LOST_AFTER: Final = 2  # intervals without a change before something disappears, because a writer may pause
_PATIENCE: Final = 1.0
"""The longest time in seconds that requests wait for settings that changed while their worker was idle."""
_MAX_TRIES: Final = 60
_RESTLESS: Final = "the settings file keeps changing, so it cannot be read"
_FEWER: Final = (
    "the settings no longer have all of %s. They take effect once their files have stayed the same for %g s."
    " To apply them at once, call limiter.reload()"
)
_log = logging.getLogger("ratelimit_mw")
Identities = Mapping[Path, Identity | None]


class Renewed(Protocol):
    """A limiter whose settings are loaded again."""

    settings: Settings
    lock: Any
    """Held while the settings are replaced."""

    def load_again(self) -> tuple[Settings, Collection[str]]:
        """Read the settings, and change nothing. Return them, and the names of those that need a restart."""

    def renew(self, settings: Settings, unchanged: Collection[str]) -> Callable[[], None]:
        """Check all that depends on settings. Return the function that puts them into effect."""


class FileFollower(Follower):
    """Two middlewares around one application have equal rules: their limiters have one follower."""

    def __init__(self, origin: Origin) -> None:
        self._limiters: WeakSet[Renewed] = WeakSet()
        self._known: Identities = _identities(origin.files)
        self._rejected: dict[Path, bytes | None] | None = None
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._interval = math.inf
        self._seen_at = monotonic()
        self._again_at = math.inf
        """When to look again at files that had changed too recently."""
        self._tries = 0
        self._awaited: tuple[Future[None] | None, float] = None, 0.0
        """The thread that requests have waited for, and the time until which they do."""
        self._changed: tuple[Identities, float] = {}, 0.0
        """The identities of the changed files, and when they were first found."""
        self._lost: Set[str] = frozenset()
        """The parts that are missing in settings that wait for a second look."""

    @property
    def interval(self) -> float:
        return self._interval

    @property
    def due_at(self) -> float:
        return min(super().due_at, self._again_at)

    def add(self, limiter: Renewed, origin: Origin) -> None:
        """Reload a limiter, too. If it has read newer files than the others, the next look finds a change."""
        with self._lock:
            self._limiters.add(limiter)
            self._known = {**_identities(origin.files), **self._known}
            self._interval = _interval_of([limiter])

    def begin(self) -> None:
        """Compare the identity of the files, and start a thread if it has changed. It reads no file."""
        self._begun_at = monotonic()
        if self._must_read():
            run_once(self, self._follow)

    async def catch_up(self, call: Call) -> None:
        now = monotonic()
        if self._must_read():
            reading = run_once(self, self._follow)
            if reading is not self._awaited[0]:
                self._awaited = reading, now + _PATIENCE
            with suppress(OSError):  # it is late, or the machine has no thread left
                await call(self, "join", reading, self._awaited[1] - now)
            self._seen_at = max(self._seen_at, now)

    @staticmethod
    def join(reading: Future[None], timeout: float) -> None:
        """Wait for a thread."""
        reading.result(timeout)

    @staticmethod
    async def ajoin(reading: Future[None], timeout: float) -> None:
        """Async form of ``join``."""
        await wait_for(wrap_future(reading), timeout)

    def reload(self) -> None:
        """Read the settings again now. Raises ``ConfigError`` for mistakes; the earlier settings then stay."""
        for _ in range(_MAX_TRIES):
            if not (pause := self._try(is_manual=True)):
                return
            time.sleep(pause)
        raise ConfigError(_RESTLESS)

    def _must_read(self) -> bool:
        """Return whether the files have changed, and then have stayed the same for a while."""
        now, identities = monotonic(), {path: identity_of(path) for path in self._known}
        pause = 0.0 if identities == self._known else self._quiet - self._age(identities)
        if identities != self._known and pause <= 0:
            return True
        self._note(now, pause)
        return False

    def _follow(self) -> None:
        """Read the settings again. Log a mistake, once for each content."""
        now, pause, rejected = monotonic(), 0.0, self._rejected
        try:
            pause = self._try(is_manual=False)
            if not pause:
                _log.info("the settings were read again, and are in effect")
        except Exception as error:
            if self._rejected != rejected:
                trace = None if isinstance(error, RateLimitError) else error
                _log.error("%s (the earlier settings stay in effect)", error, exc_info=trace)
        self._note(now, pause)

    def _note(self, now: float, pause: float) -> None:
        """Note a look, and the seconds until changed files may be read. Log files that never rest, now and then."""
        self._seen_at, self._again_at = now, now + pause if pause else math.inf
        self._tries = self._tries + 1 if pause else 0
        if self._tries >= _MAX_TRIES:
            self._tries = 0
            _log.error("%s (the earlier settings stay in effect)", _RESTLESS)

    @property
    def _quiet(self) -> float:
        return min(_QUIET, self._interval)

    def _age(self, identities: Identities) -> float:
        """Return the seconds since the last change: since it was found, or longer, by the times of the files."""
        now = monotonic()
        if self._changed[0] != identities:
            self._changed = identities, now
        times = [max(each.modified_ns, each.changed_ns) for each in identities.values() if each is not None]
        of_files = machine.time_ns() / 1e9 - max(times) / 1e9 if len(times) == len(identities) else 0.0
        return max(now - self._changed[1], of_files)

    def _try(self, is_manual: bool) -> float:
        """Read the settings, check them, and put them into effect. Return 0, or the seconds until another try.

        No lock is held while files are read, because that may take long.
        """
        with self._lock:
            known, limiters = self._known, sorted(self._limiters, key=id)
        error: Exception | None = None
        loaded: list[tuple[Settings, Collection[str]]] = []
        with recording() as files:
            try:
                loaded = [limiter.load_again() for limiter in limiters]
            except Exception as found:
                error = found
        identities = {path: identity_of(path) for path in (*known, *files)}
        if any(identities[path] != state.identity for path, state in files.items()):
            return self._quiet
        lost = {
            part
            for limiter, (later, _) in zip(limiters, loaded, strict=False)
            for part in missing_parts(limiter.settings, later)
        }
        if lost and not (is_manual or error):
            pause = _LOST_AFTER * self._interval - self._age({path: identities[path] for path in known})
            if pause > 0:
                self._log_lost(lost)
                return pause
        with self._lock, ExitStack() as held:
            if self._known is known:
                for limiter in limiters:
                    held.enter_context(limiter.lock)
                try:
                    if error is not None:
                        raise error
                    uses = [limiter.renew(*each) for limiter, each in zip(limiters, loaded, strict=True)]
                except Exception:
                    self._known, self._rejected = identities, {path: state.digest for path, state in files.items()}
                    raise
                for use in uses:
                    use()
                self._interval = _interval_of(limiters)
                self._rejected, self._lost = None, frozenset()
                # This comes last: a request that finds no change does not wait for this thread.
                self._known = _identities(files)
                return 0.0
        return self._try(is_manual)  # another thread was faster, or there is one more limiter

    def _log_lost(self, lost: Set[str]) -> None:
        if lost != self._lost:
            self._lost = frozenset(lost)
            _log.warning(_FEWER, ", ".join(sorted(lost)), _LOST_AFTER * self._interval)


def _identities(files: Mapping[Path, FileState]) -> Identities:
    return {path: state.identity for path, state in files.items()}


def _interval_of(limiters: Iterable[Renewed]) -> float:
    """Return the seconds between two looks, which are in the file that the limiters share."""
    return min((each.settings.reload_interval / SECOND or math.inf for each in limiters), default=math.inf)


_followers: Final[WeakValueDictionary[Hashable, FileFollower]] = WeakValueDictionary()
_joining: Final = threading.Lock()


def follower_of(limiter: Renewed) -> FileFollower | None:
    """Return the follower of the settings of a limiter; None for settings that your code has built."""
    origin = limiter.settings.origin
    if origin is None:
        return None
    with _joining:
        follower = _followers.get(origin.key)
        if follower is None:
            follower = _followers[origin.key] = FileFollower(origin)
    follower.add(limiter, origin)
    return follower
