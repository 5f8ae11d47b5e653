"""The common part of the slow twins of the algorithms: results are searched for by their definition.

Shares nothing with the package. Times are whole microseconds.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

LONG_AGO = -(10**30)


class Answer(NamedTuple):
    """The result of one hit; ``retry_after`` None means never."""

    allowed: bool
    remaining: int
    retry_after: int | None
    reset_after: int
    delay: int = 0


class Entry:
    """A hit that was counted: when, how much of it still counts, and since when a queue serves it."""

    def __init__(self, time: int, cost: int | Fraction, starts: Fraction = Fraction(0)) -> None:
        self.time = time
        self.cost = cost
        self.starts = starts


class Reference:
    """The base of all twins. ``entries`` holds every counted hit that is not refunded in full."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        self.amount = amount
        self.period = period
        self.capacity = capacity if capacity is not None else amount
        self.entries: list[Entry] = []
        self.last = LONG_AGO

    # -- defined by each algorithm -------------------------------------------------------------------------

    def fits(self, t: int, cost: int) -> bool:
        """Whether the algorithm allows ``cost`` at ``t``, which is never before the last time."""
        raise NotImplementedError

    def is_fresh(self, t: int) -> bool:
        """Whether at ``t`` nothing that was counted matters any more."""
        raise NotImplementedError

    def count(self, t: int, cost: int) -> Entry:
        return self.enter(Entry(t, cost))

    def rejected(self, t: int, cost: int) -> None:
        """A rejected hit changes nothing."""

    def delay(self, t: int) -> int:
        return 0

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        """Windows: where it was counted, which is nowhere once that has passed."""
        entry.cost = max(0, entry.cost - cost)
        self.entries = [e for e in self.entries if e.cost]

    def change(self, amount: int, capacity: int | None = None) -> None:
        """Another amount from now on; the consumed cost stays."""
        self.amount, self.capacity = amount, capacity if capacity is not None else amount

    # -- shared by all algorithms --------------------------------------------------------------------------

    def enter(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self.last = entry.time
        return entry

    def hit(self, t: int, cost: int) -> tuple[Answer, Entry | None]:
        """The result, and its counted entry."""
        at = max(t, self.last)
        if cost == 0:
            return Answer(True, self.remaining(at), 0, self.reset_after(t)), None
        if self.fits(at, cost):
            delay = self.delay(at)
            entry = self.count(at, cost)
            return Answer(True, self.remaining(at), 0, self.reset_after(t), delay), entry
        self.rejected(at, cost)
        return Answer(False, self.remaining(at), self.retry_after(t, cost), self.reset_after(t)), None

    def charge(self, t: int, cost: int) -> Entry:
        return self.count(max(t, self.last), cost)

    def refund(self, t: int, entry: Entry, cost: int) -> None:
        self.undo(max(t, self.last), entry, cost)

    def remaining(self, at: int) -> int:
        """The most that would be allowed at this same instant."""
        low, high = 0, self.capacity + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(at, middle) else (low, middle)
        return low

    def retry_after(self, t: int, cost: int) -> int | None:
        if cost > self.capacity:
            return None
        return first(lambda wait: self.fits(max(t + wait, self.last), cost))

    def reset_after(self, t: int) -> int:
        return first(lambda wait: not self.entries or (t + wait >= self.last and self.is_fresh(t + wait)))


def first(holds: Callable[[int], bool]) -> int:
    """The smallest number of microseconds at which ``holds``; once it does, it does for good."""
    if holds(0):
        return 0
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    assert holds(high)
    assert not holds(high - 1)
    return high
