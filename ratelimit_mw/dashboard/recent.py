"""``Recent``: values that all viewers of a limiter share for a few seconds, so that many pages ask its store once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..clock import SECOND, Clock
from ..forksafe import create_lock

_KEPT: Final = 4 * SECOND
Json = dict[str, Any]


class Recent:
    """Values by limiter and name. A limiter whose store is slow holds up no other one."""

    def __init__(self) -> None:
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._of_limiters = WeakKeyDictionary[Any, _OfLimiter]()

    def get(self, limiter: Any, name: str, read: Callable[[], Json]) -> Json:
        """Return a value that was read in the last seconds, by the clock of the limiter, or read it now."""
        with self._lock:
            recent = self._of_limiters.setdefault(limiter, _OfLimiter())
        return recent.get(limiter._time, name, read)


class _OfLimiter:
    def __init__(self) -> None:
        self._lock = create_lock(self, "_lock", threading.RLock)
        self._values: dict[str, tuple[int, Json]] = {}

    def get(self, clock: Clock, name: str, read: Callable[[], Json]) -> Json:
        with self._lock:
            now = clock()  # another viewer may have read the value while this one waited
            if name not in self._values or not 0 <= now - self._values[name][0] < _KEPT:
                self._values[name] = now, read()
            return self._values[name][1]
