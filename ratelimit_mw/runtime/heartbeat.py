"""Calls a function for each held item at an interval, in a thread.

The thread starts with the first item and ends when no item was held for one interval.
"""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from .forksafe import create_lock

_log = logging.getLogger("ratelimit_mw")
_Item = TypeVar("_Item")


class Heartbeat(Generic[_Item]):
    """Calls ``beat`` for each held item every ``interval`` seconds."""

    def __init__(self, beat: Callable[[_Item], None], interval: float, task: str, effect: str) -> None:
        """``task`` and ``effect`` are for the log: the work of the thread, and the effect of its absence."""
        self._beat = beat
        self._interval = interval
        self._task, self._effect = task, effect
        self._lock = create_lock(self, "_lock", threading.Lock, Heartbeat._start_empty)
        self._start_empty()

    def _start_empty(self, _intact: bool = True) -> None:
        """Even in a forked child: items and thread belong to the parent."""
        self._is_warned = self._has_failed = False
        self._held: set[_Item] = set()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def hold(self, item: _Item) -> None:
        with self._lock:
            self._held.add(item)
            # A closed heartbeat may be used again. If no thread could be started, the next item tries again.
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                name = "ratelimit_mw heartbeat"
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name=name, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:
                    # Since Python 3.12, a process that ends cannot start threads.
                    if not self._is_warned and threading.main_thread().is_alive():
                        _log.error("no thread can %s (%s); %s", self._task, error, self._effect)
                        self._is_warned = True

    def release(self, item: _Item) -> None:
        """Call the function for an item no longer. A finalizer may call this, because it takes no lock."""
        self._held.discard(item)

    def items(self) -> list[_Item]:
        with self._lock:
            return list(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Stop the thread."""
        with self._lock:
            self._thread = None
            self._stop.set()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            with self._lock:
                items = list(self._held)
                if not items:
                    self._thread = None
                    return
            has_failed = False
            for item in items:
                try:
                    self._beat(item)
                except Exception:  # it must not end the other items
                    if not (has_failed or self._has_failed):  # a failure that lasts is logged once
                        _log.exception("could not %s; %s", self._task, self._effect)
                    has_failed = True
            self._has_failed = has_failed
