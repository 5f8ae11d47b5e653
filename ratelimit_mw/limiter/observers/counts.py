"""``OutcomeCounts``: how often each rule had each outcome in this process. Knows no library of metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import repeat
from typing import Final, TypeVar

from ...forksafe import create_lock
from .events import Event
from .number import Counter, Number

MAX_SERIES: Final = 1000
OTHER: Final = "other"
"""The name that counts all rules beyond ``MAX_SERIES`` series."""
Labels = tuple[str, str, str]
"""The name of a rule, its outcome, and the kind of store, or "local". Without any rule, the name is empty."""
CounterOf = Callable[[Labels], Counter | None]
"""An observer that has this as ``counter_of`` needs no event for a request with one outcome, which is not local: the
limiter calls the function for its labels. None means that the observer needs the event."""
COUNTS_NOTHING: Final[Counter] = repeat(None)
_Observer = TypeVar("_Observer", bound=Callable[[Event], None])


def counting(counter_of: CounterOf, write_counts: Callable[[], None] | None = None) -> Callable[[_Observer], _Observer]:
    """Give a function that is an observer its ``counter_of``, and the function to call when a limiter is closed."""

    def add(observer: _Observer) -> _Observer:
        vars(observer).update(counter_of=counter_of, write_counts=write_counts)
        return observer

    return add


class OutcomeCounts:
    """Counts the outcomes of rules."""

    def __init__(self) -> None:
        self._numbers: dict[Labels, Number] = {}
        self._lock = create_lock(self, "_lock", threading.Lock)

    def counter_of(self, labels: Labels) -> Counter:
        """Return the counter of requests with these labels."""
        number = self._numbers.get(labels)
        if number is None:
            with self._lock:
                if len(self._numbers) >= MAX_SERIES:
                    labels = OTHER, *labels[1:]
                number = self._numbers.get(labels)
                if number is None:
                    number = self._numbers[labels] = self._new_number(labels)
        return number.counter

    def _new_number(self, _: Labels) -> Number:
        return Number()

    def add(self, event: Event) -> None:
        """Count each rule of an event."""
        store = "local" if event.local else event.store
        for rule, outcome in (event.outcomes or {"": event.outcome}).items():
            next(self.counter_of((rule, outcome, store)))

    def write(self) -> None:
        """Write the counts to where other processes read them."""

    def totals(self) -> dict[Labels, int]:
        """Return the counts by their labels."""
        with self._lock:
            return {labels: number.read() for labels, number in self._numbers.items()}
