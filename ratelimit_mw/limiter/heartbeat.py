"""Does something again and again with what is held: renews slots, or gives back those that a store did not take.

One thread a keeper, started when something is held and gone when nothing has been for a while.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import to_seconds
from ..forksafe import create_lock

__all__ = ["Heartbeat"]

_BETWEEN: Final = to_seconds(SLOT_LIFE) / 3
_NAME: Final = "ratelimit_mw leases"
_log = logging.getLogger("ratelimit_mw")


_Held = TypeVar("_Held")


class Heartbeat(Generic[_Held]):
    """Calls ``renew`` with all that is held; by default three times in the life of a lease."""

    def __init__(self, renew: Callable[[_Held], None], between: float = _BETWEEN) -> None:
        self._renew = renew
        self._between = between
        self._held: set[_Held] = set()
        self._lock = create_lock(self, "_lock", threading.Lock, Heartbeat._forget_parent)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def hold(self, held: _Held) -> None:
        """Renew this until it is released."""
        with self._lock:
            self._held.add(held)
            # Whoever was closed may be used again, and where no thread could be started the next one tries again.
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name=_NAME, daemon=True)
                self._thread.start()

    def release(self, held: _Held) -> None:
        with self._lock:
            self._held.discard(held)

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Let the thread go."""
        with self._lock:
            self._thread = None
            self._stop.set()

    def _forget_parent(self, _whole: bool) -> None:
        """In a forked child: what the parent holds is the parent's, and its thread has stayed there."""
        self._held, self._thread, self._stop = set(), None, threading.Event()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._between):
            with self._lock:
                held = list(self._held)
                if not held:
                    self._thread = None
                    return
            for each in held:
                self._try_to_renew(each)

    def _try_to_renew(self, held: _Held) -> None:
        """One that fails does not end the others'."""
        try:
            self._renew(held)
        except Exception:
            _log.exception("the slots of a request in flight were not renewed; without that they end within a minute")
