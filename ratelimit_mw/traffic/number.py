"""``Number``: counts without a lock. Pure, no I/O."""

from collections.abc import Callable
from itertools import count

Counter = Callable[[], object]
"""Counts one more. Several threads may call it at the same time."""


class Number:
    """A number that any thread can add one to without a lock. Reading it takes longer."""

    def __init__(self) -> None:
        self.add: Counter = count().__next__  # one step of the interpreter
        self._next: Callable[[], int] = self.add
        self._reads = self._taken = 0

    def read(self) -> int:
        """Return the number. One thread may read at a time."""
        self._reads += 1
        return self._next() - self._reads + 1

    def take(self) -> int:
        """Return the number since the last call, as ``read`` does."""
        before, self._taken = self._taken, self.read()
        return self._taken - before
