"""Slow and simple references of the algorithms. Each follows its row of the table, with lists of counted hits and
exact fractions. They share no code with the package.
"""

from fractions import Fraction
from math import ceil, floor

from reference_base import LONG_AGO, Entry, Reference


class Window(Reference):
    """An algorithm that sums counted costs up to N."""

    def seen(self, t: int) -> int:
        raise NotImplementedError

    def fits(self, t: int, cost: int) -> bool:
        return self.seen(t) + cost <= self.amount

    def is_fresh(self, t: int) -> bool:
        return self.seen(t) == 0


class FixedWindow(Window):
    """Windows ``[kP, (k+1)P)`` from the epoch; ``count + c <= N``."""

    def seen(self, t: int) -> int:
        return sum(e.cost for e in self.entries if e.time // self.period == t // self.period)


class SlidingWindowLog(Window):
    """Sum of costs counted in ``(t-P, t]``, plus ``c``, ``<= N``."""

    def seen(self, t: int) -> int:
        return sum(e.cost for e in self.entries if t - self.period < e.time <= t)


class RejectionCountingLog(SlidingWindowLog):
    """A hit that this log itself rejects counts, too. Only the newest entries that together reach N are kept."""

    def rejected(self, t: int, cost: int) -> None:
        self.count(t, cost)
        while sum(e.cost for e in self.entries if e.time > self.entries[0].time) >= self.amount:
            self.entries = [e for e in self.entries if e.time > self.entries[0].time]


class SlidingWindowCounter(Window):
    """``floor(previous * (P - elapsed - 1) / P) + current + c <= N``."""

    def seen(self, t: int) -> int:
        window, elapsed = t // self.period, t % self.period
        current = sum(e.cost for e in self.entries if e.time // self.period == window)
        previous = sum(e.cost for e in self.entries if e.time // self.period == window - 1)
        return floor(Fraction(previous * (self.period - elapsed - 1), self.period)) + current


class TieredWindow(Window):
    """Sum of costs whose ``floor(time/precision) > floor(t/precision) - P/precision``, plus ``c``, ``<= N``."""

    def __init__(self, amount: int, period: int, precision: int | None = None) -> None:
        super().__init__(amount, period)
        self.precision = precision or self.default_precision()

    def default_precision(self) -> int:
        """The largest of 1 h, 1 min, 1 s that goes into P at least 60 times, else P/100."""
        units = [unit for unit in (3_600_000_000, 60_000_000, 1_000_000) if self.period % unit == 0]
        return next((unit for unit in units if self.period // unit >= 60), self.period // 100)

    def seen(self, t: int) -> int:
        horizon = t // self.precision - self.period // self.precision
        return sum(e.cost for e in self.entries if e.time // self.precision > horizon)


class LeakyBucket(Reference):
    """A level draining at ``N/P``; ``level + c <= B``."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        super().__init__(amount, period, capacity)
        self.level_then = Fraction(0)

    def level(self, t: int) -> Fraction:
        return max(Fraction(0), self.level_then - Fraction((t - self.last) * self.amount, self.period))

    def fits(self, t: int, cost: int) -> bool:
        return self.level(t) + cost <= self.capacity

    def is_fresh(self, t: int) -> bool:
        return self.level(t) == 0

    def count(self, t: int, cost: int) -> Entry:
        self.level_then = self.level(t) + cost
        return self.enter(Entry(t, cost))

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        """``max(0, c - (t - at) * N/P)``, never above full."""
        back = max(Fraction(0), cost - Fraction((t - entry.time) * self.amount, self.period))
        self.level_then, self.last = max(Fraction(0), self.level(t) - back), t


class TokenBucket(Reference):
    """Starts full with ``B``, refills continuously at ``N/P``; ``tokens >= c``."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        super().__init__(amount, period, capacity)
        self.tokens_then = Fraction(self.capacity)

    def tokens(self, t: int) -> Fraction:
        refilled = self.tokens_then + Fraction((t - self.last) * self.amount, self.period)
        return min(Fraction(self.capacity), refilled)

    def fits(self, t: int, cost: int) -> bool:
        return self.tokens(t) >= cost

    def is_fresh(self, t: int) -> bool:
        return self.tokens(t) == self.capacity

    def count(self, t: int, cost: int) -> Entry:
        self.tokens_then = self.tokens(t) - cost
        return self.enter(Entry(t, cost))

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        back = max(Fraction(0), cost - Fraction((t - entry.time) * self.amount, self.period))
        self.tokens_then, self.last = min(Fraction(self.capacity), self.tokens(t) + back), t

    def change(self, amount: int, capacity: int | None = None) -> None:
        consumed = self.capacity - self.tokens_then
        super().change(amount, capacity)
        self.tokens_then = self.capacity - consumed


class Gcra(Reference):
    """``max(t, tat) + c*T - B*T <= t``, with ``T = P/N``."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        super().__init__(amount, period, capacity)
        self.t_each = Fraction(period, amount)
        self.tat = Fraction(LONG_AGO)

    def fits(self, t: int, cost: int) -> bool:
        return max(t, self.tat) + cost * self.t_each - self.capacity * self.t_each <= t

    def is_fresh(self, t: int) -> bool:
        return self.tat <= t

    def count(self, t: int, cost: int) -> Entry:
        self.tat = max(t, self.tat) + cost * self.t_each
        return self.enter(Entry(t, cost))

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        self.tat -= max(Fraction(0), cost * self.t_each - (t - entry.time))
        self.last = t

    def change(self, amount: int, capacity: int | None = None) -> None:
        consumed = (self.tat - self.last) / self.t_each
        super().change(amount, capacity)
        self.t_each = Fraction(self.period, amount)
        self.tat = self.last + consumed * self.t_each


class IntervalTokenBucket(Reference):
    """Full again, at ``t``, once ``P`` has passed since the last refill or the first counted hit."""

    def __init__(self, amount: int, period: int, capacity: int | None = None) -> None:
        super().__init__(amount, period, capacity)
        self.refilled = LONG_AGO

    def since_refill(self, t: int) -> list[Entry]:
        return [] if t - self.refilled >= self.period else [e for e in self.entries if e.time >= self.refilled]

    def fits(self, t: int, cost: int) -> bool:
        return self.capacity - sum(e.cost for e in self.since_refill(t)) >= cost

    def is_fresh(self, t: int) -> bool:
        return not self.since_refill(t)

    def count(self, t: int, cost: int) -> Entry:
        if not self.since_refill(t):
            self.refilled = t
        return self.enter(Entry(t, cost))


class LeakyBucketQueue(Reference):
    """A FIFO of size ``B`` served at ``N/P``: a request is served after all before it."""

    def free_at(self) -> Fraction:
        """Return the time when the queue is empty."""
        if not self.entries:
            return Fraction(LONG_AGO)
        return self.entries[-1].starts + Fraction(self.entries[-1].cost * self.period, self.amount)

    def level(self, t: int) -> Fraction:
        return max(Fraction(0), (self.free_at() - t) * self.amount / self.period)

    def fits(self, t: int, cost: int) -> bool:
        return self.level(t) + cost <= self.capacity

    def is_fresh(self, t: int) -> bool:
        return self.level(t) == 0

    def delay(self, t: int) -> int:
        """Return the level before this hit, times P/N, rounded up."""
        return ceil(self.level(t) * self.period / self.amount)

    def count(self, t: int, cost: int) -> Entry:
        return self.enter(Entry(t, cost, max(Fraction(t), self.free_at())))

    def undo(self, t: int, entry: Entry, cost: int) -> None:
        """Return the part that no later departure depends on."""
        if self.entries and entry is self.entries[-1]:
            super().undo(t, entry, cost)

    def change(self, amount: int, capacity: int | None = None) -> None:
        """Give new times to the requests that were in the queue at the last hit, in order."""
        consumed = self.level(self.last)
        super().change(amount, capacity)
        if self.entries:
            self.entries = [Entry(self.last, consumed, Fraction(self.last))]


BY_NAME: dict[tuple[str, object], type[Reference]] = {
    ("fixed-window", None): FixedWindow,
    ("sliding-window-log", None): SlidingWindowLog,
    ("sliding-window-log", True): RejectionCountingLog,
    ("sliding-window-counter", None): SlidingWindowCounter,
    ("token-bucket", None): TokenBucket,
    ("token-bucket", "interval"): IntervalTokenBucket,
    ("leaky-bucket", None): LeakyBucket,
    ("leaky-bucket", "queue"): LeakyBucketQueue,
    ("gcra", None): Gcra,
}


def build(
    spec: str | dict[str, object], amount: int, period: int, burst: int | None = None, precision: int | None = None
) -> Reference:
    """Return the reference of an algorithm by its name. ``precision`` is that of the tiered window in microseconds."""
    table = {"name": spec} if isinstance(spec, str) else spec
    if table["name"] == "tiered-window":
        return TieredWindow(amount, period, precision)
    option = next((value for key, value in table.items() if key != "name"), None)
    return BY_NAME[str(table["name"]), option](amount, period, burst)
