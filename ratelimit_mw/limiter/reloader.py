"""``Reloader``: reloads all limiters of this process that have the same source of settings.

A request only compares the identity of the files, once per ``reload_interval``. A thread of its own reads and checks
files that have changed. Either all limiters take the new settings, or none of them does.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

from ..clock import SECOND
from ..errors import ConfigError, RateLimitError
from ..forksafe import create_lock
from ..settings.origin import Identity, Origin, identity_of, recording
from ..stores.background import run_once

if TYPE_CHECKING:
    from .reloads import Reloads

_QUIET: Final = 1.0  # seconds without a change before files are read, because a writer may not be done
_MAX_TRIES: Final = 60
_RESTLESS: Final = "the settings file keeps changing, so it cannot be read"
_log = logging.getLogger("ratelimit_mw")


class Reloader:
    """Reloads limiters whose settings have the same source: two middlewares around one application have equal rules."""

    def __init__(self, origin: Origin) -> None:
        self._limiters: WeakSet[Reloads] = WeakSet()
        self._known: dict[Path, Identity] = {path: state.identity for path, state in origin.files.items()}
        self._rejected: dict[Path, bytes | None] | None = None
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._interval = math.inf
        self.due_at = math.inf
        """The time of the next look, by ``time.monotonic``."""

    def add(self, limiter: Reloads, origin: Origin) -> None:
        """Reload a limiter, too. If it has read newer files than the others, the next look finds a change."""
        with self._lock:
            self._limiters.add(limiter)
            self._known = {path: state.identity for path, state in origin.files.items()} | self._known
            self._set_interval(limiter)

    def look(self) -> None:
        """Compare the identity of the files, and start a thread if it has changed. It reads no file."""
        self.due_at = time.monotonic() + self._interval
        if self._identities() != self._known:
            run_once(self, self._follow)

    def reload(self) -> None:
        """Read the settings again now. Raises ``ConfigError`` for mistakes; the earlier settings then stay."""
        for _ in range(_MAX_TRIES):
            if self._try():
                return
            time.sleep(self._quiet)
        raise ConfigError(_RESTLESS)

    def _follow(self) -> None:
        """Read the settings again once their files have stopped changing. Log a mistake, once for each content."""
        for _ in range(_MAX_TRIES):
            before = self._identities()
            time.sleep(self._quiet)
            rejected = self._rejected
            try:
                if self._identities() == before and self._try():
                    _log.info("the settings were read again, and are in effect")
                    return
            except Exception as error:
                if self._rejected != rejected:
                    trace = None if isinstance(error, RateLimitError) else error
                    _log.error("%s (the earlier settings stay in effect)", error, exc_info=trace)
                return
        _log.error("%s (the earlier settings stay in effect)", _RESTLESS)

    @property
    def _quiet(self) -> float:
        return min(_QUIET, self._interval)

    def _identities(self) -> dict[Path, Identity]:
        return {path: identity_of(path) for path in self._known}

    def _try(self) -> bool:
        """Return whether the files stayed the same while they were read. Otherwise nothing has changed."""
        uses: list[Callable[[], None]] = []
        failure: Exception | None = None
        with self._lock, ExitStack() as held:
            limiters = sorted(self._limiters, key=id)
            for limiter in limiters:
                held.enter_context(limiter.adopting)
            with recording() as files:
                try:
                    uses += [limiter.renew() for limiter in limiters]
                except Exception as error:
                    failure = error
            if any(identity_of(path) != state.identity for path, state in files.items()):
                return False
            if failure is not None:
                self._known = {path: identity_of(path) for path in (*self._known, *files)}
                self._rejected = {path: state.digest for path, state in files.items()}
                raise failure
            self._known = {path: state.identity for path, state in files.items()}
            self._rejected = None
            for use in uses:
                use()
            for limiter in limiters:
                self._set_interval(limiter)
        return True

    def _set_interval(self, limiter: Reloads) -> None:
        self._interval = limiter.settings.reload_interval / SECOND or math.inf
        self.due_at = time.monotonic() + self._interval


_reloaders: Final[WeakValueDictionary[Hashable, Reloader]] = WeakValueDictionary()
_joining: Final = threading.Lock()


def reloader_of(limiter: Reloads) -> Reloader | None:
    """Return the reloader for the settings of a limiter; None for settings that your code has built."""
    origin = limiter.settings.origin
    if origin is None:
        return None
    with _joining:
        reloader = _reloaders.get(origin.key)
        if reloader is None:
            reloader = _reloaders[origin.key] = Reloader(origin)
    reloader.add(limiter, origin)
    return reloader
