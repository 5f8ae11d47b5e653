"""``OutcomeReader``: an observer that has the number of requests with each outcome. It needs no event of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from ...runtime.forksafe import create_lock
from .events import Event, Labels, RequestOutcomes

MAX_SERIES: Final = 1000
OTHER: Final = "other"
"""The name that counts all rules beyond ``MAX_SERIES`` series."""


class Number:
    """A number that any thread can ``add`` one to without a lock."""

    def __init__(self) -> None:
        self.add: Callable[[], int] = count().__next__  # one step of the interpreter
        self._reads = 0

    def read(self) -> int:
        """Return the number. One thread may call this at a time."""
        self._reads += 1
        return self.add() - self._reads + 1


class OutcomeReader:
    """Has the number of requests by their labels. Bounded. A subclass shows it."""

    def __init__(self) -> None:
        self.limiters = WeakValueDictionary[int, Any]()
        """The ``Observers`` of the limiters whose requests are counted here, until they are gone, by their ids."""
        self._lock = create_lock(self, "_lock", threading.Lock, lambda reader, _: reader.start_over())
        self.start_over()

    def start_over(self) -> None:
        """Count from zero. A forked child does so, because the parent counts its own requests."""
        self._numbers: dict[Labels, Number] = {}

    def counters_of(self, outcomes: RequestOutcomes) -> list[Callable[[], object]]:
        """Return functions that together count a request.

        Args:
            outcomes: The outcomes of the request.
        """
        with self._lock:
            return [self._number(labels).add for labels in outcomes.labels]

    def _number(self, labels: Labels) -> Number:
        if labels not in self._numbers and len(self._numbers) >= MAX_SERIES:
            labels = OTHER, *labels[1:]
        return self._numbers.setdefault(labels, Number())

    def totals(self) -> dict[Labels, int]:
        """Return the numbers of requests by their labels."""
        with self._lock:
            return {labels: number.read() for labels, number in self._numbers.items()}

    def gauges(self, wanted: str) -> dict[tuple[str, ...], int]:
        """Return the numbers of a gauge at this moment, by their labels: of several limiters, the largest.

        Args:
            wanted: Its name: "breaker", "limit" or "in_flight".
        """
        found: dict[tuple[str, ...], int] = {}
        limiters = [reference() for reference in self.limiters.valuerefs()]  # which other threads may add to
        for limiter in filter(None, limiters):
            for name, labels, number in limiter.gauges():
                if name == wanted:
                    found[labels] = max(number, found.get(labels, 0))
        return found

    def measure_store(self, seconds: float, store: str, result: str) -> None:
        """Add the time of a call of a store.

        Args:
            seconds: The time.
            store: The kind of the store.
            result: "ok" or "error".
        """

    def write(self) -> None:
        """Write the numbers now, because the process may end. A thread that is not an event loop calls this."""

    def __call__(self, event: Event) -> None:
        for count_one in self.counters_of(event.counted):
            count_one()
