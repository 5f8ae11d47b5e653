"""``Number``: counts without a lock. Pure, no I/O."""

from collections.abc import Iterator
from itertools import count

Counter = Iterator[object]
"""Each ``next(counter)`` counts one more. It takes half the time of a call, and several threads may do it at once."""


class Number:
    """A number that any thread can add one to without a lock. Reading it takes longer."""

    def __init__(self) -> None:
        self.counter = count()  # one step of the interpreter
        self._reads = self._taken = 0

    def read(self) -> int:
        """Return the number. One thread may read at a time."""
        self._reads += 1
        return next(self.counter) - self._reads + 1

    def take(self) -> int:
        """Return how much the number has grown since the last call. One thread may call this at a time."""
        before, self._taken = self._taken, self.read()
        return self._taken - before
