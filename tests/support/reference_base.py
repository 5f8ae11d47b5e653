"""The common part of the slow references of the algorithms, which search results by their definition.

It shares no code with the package. Times are whole microseconds.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

LONG_AGO = -(10**30)


class ReferenceResult(NamedTuple):
    """The result of one hit; ``retry_after`` None means never."""

    allowed: bool
    remaining: int
    retry_after: int | None
    reset_after: int
    delay: int = 0


class Entry:
    """A counted hit: its time, the part that still counts, and its start in a queue."""

    def __init__(self, time: int, cost: int | Fraction, starts: Fraction = Fraction(0)) -> None:
        self.time = time
        self.cost = cost
        self.starts = starts


class Reference:
    """The base of all references. ``entries`` holds every counted hit that is not fully refunded."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        self.amount = amount
        self.period = period
        self.capacity = capacity if capacity is not None else amount
        self.entries: list[Entry] = []
        self.last = LONG_AGO

    # -- defined by each algorithm -------------------------------------------------------------------------

    def fits(self, t: int, cost: int) -> bool:
        """Return whether the algorithm allows ``cost`` at ``t``, which is never before the last time."""
        raise NotImplementedError

    def is_fresh(self, t: int) -> bool:
        """Return whether no counted hit matters at ``t``."""
        raise NotImplementedError

    def count(self, t: int, cost: int) -> Entry:
        return self.enter(Entry(t, cost))

    def rejected(self, t: int, cost: int) -> None:
        """Count a rejected hit. By default it changes nothing."""

    def delay(self, t: int) -> int:
        return 0

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        """Refund a part of a hit. In a window, the refund applies at the time of the hit and expires with it."""
        entry.cost = max(0, entry.cost - cost)
        self.entries = [e for e in self.entries if e.cost]

    def change(self, amount: int, capacity: int | None = None) -> None:
        """Change the amount from now on and keep the consumed cost."""
        self.amount, self.capacity = amount, capacity if capacity is not None else amount

    # -- shared by all algorithms --------------------------------------------------------------------------

    def enter(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self.last = entry.time
        return entry

    def hit(self, t: int, cost: int) -> tuple[ReferenceResult, Entry | None]:
        """Return the result and its counted entry."""
        at = max(t, self.last)
        if cost == 0:
            return ReferenceResult(True, self.remaining(at), 0, self.reset_after(t)), None
        if self.fits(at, cost):
            delay = self.delay(at)
            entry = self.count(at, cost)
            return ReferenceResult(True, self.remaining(at), 0, self.reset_after(t), delay), entry
        self.rejected(at, cost)
        return ReferenceResult(False, self.remaining(at), self.retry_after(t, cost), self.reset_after(t)), None

    def charge(self, t: int, cost: int) -> Entry:
        return self.count(max(t, self.last), cost)

    def refund(self, t: int, entry: Entry, cost: int) -> None:
        self.undo(max(t, self.last), entry, cost)

    def remaining(self, at: int) -> int:
        """Return the largest cost that would be allowed at the same time."""
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
    """Return the smallest number of microseconds at which ``holds`` is true. It must stay true from there."""
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
