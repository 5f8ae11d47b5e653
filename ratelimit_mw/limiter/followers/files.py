"""``FileFollower``: reads the settings of a limiter again after a change of their files."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...clock import SECOND, machine, monotonic
from ...errors import ConfigError, RateLimitError
from ...runtime.blocking import Call, run_once
from ...runtime.forksafe import run_in_child
from ...runtime.regularfile import identity_of
from ...settings import reload_settings
from ...settings.files import Identities
from ..observers.observers import import_observers
from ..reloads import Reloads
from ..tasks import future_result
from .follower import Follower

_UNCHANGED_FOR: Final = 1.0  # seconds without a change before files are read, because a writer may not be done
_MAX_WAIT: Final = 1.0
"""The longest time in seconds that requests wait for settings that changed while their worker was idle."""
_MAX_TRIES: Final = 60
_KEEPS_CHANGING: Final = "the settings file keeps changing, so it cannot be read"
_log = logging.getLogger("ratelimit_mw")


class FileFollower(Follower):
    """Follows the files of settings. Those of a dictionary, or that your code has built, have none.

    A request only compares the identity of the files, once per ``reload_interval``. A thread of its own reads and
    checks files that have changed.
    """

    def __init__(self, reloads: Reloads) -> None:
        self._reloads, origin = reloads, reloads.settings.origin
        self._known: Identities = {} if origin is None else origin.files
        self._logged = ""
        """The mistake that the log has of the files as they are."""
        self._seen_at = monotonic()
        self._again_at = math.inf
        """When to look again at files that had changed too recently."""
        self._tries = 0
        """The number of looks in a row that found such files."""
        self._awaited: tuple[Future[None] | None, float] = None, 0.0
        """The thread that requests have waited for, and the time until which they do."""
        self._changed: tuple[Identities, float] = {}, 0.0
        """The identities of the changed files, and when they were first found."""
        self._start_over()
        run_in_child(self, FileFollower._start_over)

    def _start_over(self) -> None:
        self._reading = threading.Lock()  # no fork waits for it, because a file may take long

    @property
    def interval(self) -> float:
        return self._reloads.settings.reload_interval / SECOND or math.inf

    @property
    def due_at(self) -> float:
        return min(super().due_at, self._again_at)

    async def look(self, call: Call, waits: bool) -> None:
        """Compare the identity of the files. A thread reads them once a change has stayed for a while."""
        now = self._begun_at = monotonic()
        identities = _identities_now(self._known)
        pause = 0.0 if identities == self._known else self._unchanged_for - self._age(identities)
        if identities == self._known or pause > 0:
            self._note(now, pause)
            return
        reading = run_once(self, self._follow)
        if waits:
            if reading is not self._awaited[0]:
                self._awaited = reading, now + _MAX_WAIT
            with suppress(OSError):  # it is late, or the machine has no thread left
                await future_result(call, reading, self._awaited[1] - now)
            self._seen_at = max(self._seen_at, now)

    def reload(self) -> None:
        """Read the settings again now. Raises ``ConfigError`` for mistakes; the earlier settings then stay."""
        if self._reloads.settings.origin is None:
            raise ConfigError("there are no settings to read again. Build the limiter with Limiter.from_settings(...)")
        for _ in range(_MAX_TRIES):
            if not (pause := self._read(is_manual=True)):
                return
            time.sleep(pause)
        raise ConfigError(_KEEPS_CHANGING)

    def _follow(self) -> None:
        """Read the settings again. Log a mistake once."""
        now, pause = monotonic(), 0.0
        try:
            pause = self._read(is_manual=False)
            if not pause:
                _log.info("the settings were read again, and are in effect")
        except Exception as error:
            if str(error) != self._logged:
                self._logged = str(error)
                trace = None if isinstance(error, RateLimitError) else error
                _log.error("%s (the earlier settings stay in effect)", error, exc_info=trace)
        self._note(now, pause)

    def _note(self, now: float, pause: float) -> None:
        """Note a look, and the seconds until changed files may be read. Log files that never rest, now and then."""
        self._seen_at, self._again_at = now, now + pause if pause else math.inf
        self._tries = self._tries % _MAX_TRIES + 1 if pause else 0
        if self._tries == _MAX_TRIES:
            _log.error("%s (the earlier settings stay in effect)", _KEEPS_CHANGING)

    @property
    def _unchanged_for(self) -> float:
        return min(_UNCHANGED_FOR, self.interval)

    def _age(self, identities: Identities) -> float:
        """Return the seconds since the last change: since it was found, or longer, by the times of the files."""
        now = monotonic()
        if self._changed[0] != identities:
            self._changed = identities, now
        times = [max(each.modified_ns, each.changed_ns) for each in identities.values() if each is not None]
        of_files = machine.time_ns() / 1e9 - max(times) / 1e9 if len(times) == len(identities) else 0.0
        return max(now - self._changed[1], of_files)

    def _read(self, is_manual: bool) -> float:
        """Read the settings, check them, and put them into effect. Return 0, or the seconds until another try."""
        files: Identities = {}
        with self._reading:
            try:
                settings, unchanged = reload_settings(self._reloads.settings, files)
                with settings.located():  # a start with these settings would find it, too
                    import_observers(unchanged.get("observers", ()))
                if _identities_now(files) != files:
                    return self._unchanged_for
                if not is_manual and (pause := self._wait_for_new(files)) > 0:
                    return pause
                self._reloads.replace(settings, unchanged)
            except Exception:
                current = _identities_now((*self._known, *files))
                if current != {**current, **files}:  # it read a file that was being written
                    return self._unchanged_for
                if not is_manual and (pause := self._wait_for_new(files)) > 0:
                    return pause
                self._known = current
                raise
            self._logged = ""
            # This comes last: a request that finds no change does not wait for this thread.
            self._known = files
            return 0.0

    def _wait_for_new(self, files: Identities) -> float:
        """Follow files that the settings have named for the first time, too. Return how long they must rest."""
        self._known = {**dict.fromkeys(files), **self._known}
        return self._unchanged_for - self._age(_identities_now(self._known))


def _identities_now(paths: Iterable[Path]) -> Identities:
    return {path: identity_of(path) for path in paths}
