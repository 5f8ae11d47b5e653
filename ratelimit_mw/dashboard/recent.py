"""``Recent``: values that all viewers of a limiter share for a few seconds, so that many pages ask its store once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..clock import SECOND
from ..forksafe import create_lock

_KEPT: Final = 4 * SECOND
Json = dict[str, Any]


class Recent:
    """Values by limiter and name."""

    def __init__(self) -> None:
        self._lock = create_lock(self, "_lock", threading.RLock)
        self._values = WeakKeyDictionary[Any, dict[str, tuple[int, Json]]]()

    def get(self, limiter: Any, name: str, read: Callable[[], Json]) -> Json:
        """Return a value that was read in the last seconds, by the clock of the limiter, or read it now."""
        now = limiter._time()
        with self._lock:
            values = self._values.setdefault(limiter, {})
            if name not in values or not 0 <= now - values[name][0] < _KEPT:
                values[name] = now, read()
            return values[name][1]
