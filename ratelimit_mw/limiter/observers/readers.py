"""``OutcomeReader``: an observer that reads how many requests had which outcomes. It needs no event of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cache, wraps
from itertools import count
from typing import Final, Protocol

from ...forksafe import create_lock
from .events import Event
from .outcomes import LOCAL, Labels, RequestOutcomes

MAX_SERIES: Final = 1000
OTHER: Final = "other"
"""The name that counts all rules beyond ``MAX_SERIES`` series."""


class Number:
    """A number that any thread can add one to without a lock, by ``next(number.counter)``.

    It takes half the time of a call.
    """

    def __init__(self) -> None:
        self.counter = count()  # one step of the interpreter
        self._reads = self._taken = 0

    def take(self) -> int:
        """Return how much the number has grown since the last call. One thread may call this at a time."""
        self._reads += 1
        before, self._taken = self._taken, next(self.counter) - self._reads + 1
        return self._taken - before


class CountSource(Protocol):
    """The numbers of the requests of a limiter."""

    is_abandoned: bool
    """Whether its limiter is gone."""

    @property
    def store(self) -> str:
        """The kind of the store."""

    def gauges(self) -> Iterable[tuple[str, tuple[str, ...], int]]:
        """Yield the numbers of this moment, each with its name and its labels."""

    def collect(self) -> None:
        """Add the numbers since the last call to each reader."""


class OutcomeReader:
    """Has the number of requests by their labels. Bounded. A subclass shows it."""

    def __init__(self) -> None:
        self._totals: dict[Labels, int] = {}
        self._sources: list[CountSource] = []
        self._lock = create_lock(self, "_lock", threading.Lock)

    def reader(self) -> OutcomeReader:
        """Return the reader that counts the events of this observer."""
        return self

    def attach(self, source: CountSource) -> None:
        """Read a limiter from now on, until it is gone.

        Args:
            source: The numbers of its requests.
        """
        self._sources.append(source)

    def collect(self) -> None:
        """Read all limiters."""
        for source in list(self._sources):
            is_last = source.is_abandoned
            source.collect()
            if is_last and source in self._sources:
                self._sources.remove(source)

    def totals(self) -> dict[Labels, int]:
        """Return the numbers of requests by their labels."""
        self.collect()
        with self._lock:
            return dict(self._totals)

    def gauges(self, wanted: str) -> dict[tuple[str, ...], int]:
        """Return the numbers of a gauge at this moment, by their labels: of several limiters, the largest.

        Args:
            wanted: Its name: "breaker", "limit" or "in_flight".
        """
        found: dict[tuple[str, ...], int] = {}
        for source in list(self._sources):
            for name, labels, number in source.gauges():
                if name == wanted:
                    found[labels] = max(number, found.get(labels, 0))
        return found

    def add(self, outcomes: RequestOutcomes, number: int) -> None:
        """Add requests.

        Args:
            outcomes: Their outcomes.
            number: Their number.
        """
        with self._lock:
            for labels in outcomes.labels:
                if labels not in self._totals and len(self._totals) >= MAX_SERIES:
                    labels = OTHER, *labels[1:]
                self._totals[labels] = self._totals.get(labels, 0) + number
                self.count(labels, number)

    def count(self, labels: Labels, number: int) -> None:
        """Add requests. The caller holds a lock.

        Args:
            labels: Their labels.
            number: Their number; 0 for new labels.
        """

    def measure(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration.

        Args:
            name: Its name: "delay" or "store".
            seconds: The duration.
            *labels: The labels.
        """

    def write(self) -> None:
        """Write the numbers now, because the process may end. A thread that is not an event loop calls this."""

    def __call__(self, event: Event) -> None:
        store = LOCAL if event.local else event.store
        self.add(RequestOutcomes(event.outcome, tuple(event.outcomes.items()), store), 1)


def reads(build: Callable[[], OutcomeReader]) -> Callable[[Callable[[Event], None]], Callable[[Event], None]]:
    """Give an observer the reader of this process, which is built when it is needed.

    It has the name and the docstring of the function.
    """
    reader = cache(build)

    def add(function: Callable[[Event], None]) -> Callable[[Event], None]:
        @wraps(function)
        def observer(event: Event) -> None:
            reader()(event)

        vars(observer).update(reader=reader)
        return observer

    return add
