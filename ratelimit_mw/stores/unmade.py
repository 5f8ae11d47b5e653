"""The corrections that a store has not made, because it was busy with other clients. A thread tries them again.

The pause before a try doubles from 0.1 s to 3.2 s. After 60 s the cost stays consumed; a slot has expired by then.
"""

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import SECOND, monotonic
from ..decision import Correction
from ..errors import RateLimitError
from ..forksafe import create_lock
from ..heartbeat import Heartbeat

_FIRST: Final = 0.1  # seconds
_LONGEST: Final = 3.2  # seconds
_CLOSING: Final = 1.0  # seconds in which the last tries begin
_MOST: Final = 10_000  # items
_log = logging.getLogger("ratelimit_mw")

Leave = Callable[[Sequence[Correction], int | None], None]
"""Receives the corrections that other clients have prevented, and the time that the caller gave."""


@dataclass(slots=True, eq=False)
class _Unmade:
    changes: Sequence[Correction]
    now: int | None  # the time that the caller gave
    began: float
    tried: float
    pause: float = _FIRST


class UnmadeCorrections:
    """The corrections of a store to try again, at the end of the process too. ``correct`` returns those still left."""

    def __init__(
        self,
        correct: Callable[[Sequence[Correction], int | None], Sequence[Correction]],
        time: Callable[[], float] = monotonic,
    ) -> None:
        self._correct, self._time = correct, time
        self._heartbeat = Heartbeat(self._beat, _FIRST, "make corrections", "their cost stays consumed")
        self._is_full = False
        self._lock = create_lock(self, "_lock", threading.Lock)  # of the caller that tries

    def keep(self, changes: Sequence[Correction], now: int | None) -> None:
        if not changes:
            return
        unmade = _Unmade(changes, now, self._time(), self._time())
        if len(self._heartbeat) >= _MOST:
            if not self._is_full:
                _give_up(len(changes))
            self._is_full = True
            return
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._heartbeat.hold(unmade)

    def __len__(self) -> int:
        return len(self._heartbeat)

    def close(self) -> None:
        """Try all corrections once more, and stop the thread."""
        ends_at, left = self._time() + _CLOSING, 0
        with self._lock:
            for unmade in self._heartbeat.items():
                self._heartbeat.release(unmade)
                if self._time() > ends_at or not self._makes(unmade):
                    left += len(unmade.changes)
        self._heartbeat.close()
        if left:
            _give_up(left)
        atexit.unregister(self.close)

    async def aclose(self) -> None:
        """Async form of ``close``: a thread makes the tries."""
        if len(self):
            await asyncio.to_thread(self.close)

    def _beat(self, unmade: _Unmade) -> None:
        with self._lock:
            if self._time() < unmade.tried + unmade.pause or unmade not in self._heartbeat:
                return
            is_made = self._makes(unmade)
            unmade.pause, unmade.tried = min(2 * unmade.pause, _LONGEST), self._time()
            is_over = unmade.tried > unmade.began + SLOT_LIFE / SECOND
            if is_made or is_over:
                self._heartbeat.release(unmade)
            if is_over and not is_made:
                _give_up(len(unmade.changes))

    def _makes(self, unmade: _Unmade) -> bool:
        """Try once. After an error the server may have made them, so only slots, which have an id, are tried again."""
        try:
            unmade.changes = self._correct(unmade.changes, unmade.now)
        except RateLimitError:  # without its event loop, the client of an application raises ConfigError
            unmade.changes = [change for change in unmade.changes if change.limit.quota.concurrent]
        return not unmade.changes


def _give_up(count: int) -> None:
    _log.warning("%d corrections were not made, because the store was busy or unreachable; their cost stays", count)
