"""sliding-window-log and tiered-window: the costs in the buckets of ``precision`` inside the window.

The log is a tiered window with buckets of one microsecond. A state is a view of two columns that it shares with the
states before it: the numbers of the closed buckets, and the running total up to each. Columns are only appended to, so
a hit costs two binary searches for every N.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from ..clock import SECOND
from ..decision import Algorithm, Charge, Decision
from ..errors import ConfigError
from ..quota import Quota, format_duration

MAX_LOG = 10_000
_SLACK = 64
_REBASED_ABOVE = 1 << 62
_new = tuple.__new__  # Builds a ``Series`` from its seven fields, faster than the class.


class Series(NamedTuple):
    """Closed buckets ``start..end`` of the shared columns, and the open bucket after them.

    ``base`` is the running total before ``start``. ``total`` is the running total with the open bucket.
    """

    buckets: array[int]
    totals: array[int]
    start: int
    end: int
    base: int
    open: int
    total: int

    @classmethod
    def single(cls, bucket: int, cost: int) -> Series:
        return cls(_NOTHING, _NOTHING, 0, 0, 0, bucket, cost)

    def entries(self, place: int | None = None) -> list[tuple[int, int]]:
        """(bucket, cost) of each bucket from ``place`` on, by default of all, oldest first."""
        place = self.start if place is None else place
        entries, before = [], self._total_before(place)
        for i in range(place, self.end):
            entries.append((self.buckets[i], self.totals[i] - before))
            before = self.totals[i]
        return [*entries, (self.open, self.total - before)]

    def _total_before(self, place: int) -> int:
        return self.base if place == self.start else self.totals[place - 1]

    @staticmethod
    def from_entries(entries: Iterable[tuple[int, int]], state: Series | None = None) -> Series | None:
        """Return the series ``state`` with later entries; None without any."""
        for bucket, cost in entries:
            state = Series.single(bucket, cost) if state is None else state.with_cost(bucket, cost)
        return state

    def since(self, horizon: int) -> Series:
        """Return the series without the buckets up to ``horizon``. The columns do not change."""
        buckets, totals, start, end, _, last, total = self
        if last <= horizon:
            return Series.single(last, 0)
        if start == end or buckets[start] > horizon:
            return self
        start = bisect_right(buckets, horizon, start, end)
        return _new(Series, (buckets, totals, start, end, totals[start - 1], last, total))

    def newest(self, cost: int) -> Series:
        """Return the newest buckets that together reach ``cost``."""
        start = bisect_right(self.totals, self.total - cost, self.start, self.end)
        return self._replace(start=start, base=self._total_before(start))

    def bucket_at(self, total: int) -> int:
        """Return the bucket in which the running total reaches ``total``."""
        place = bisect_left(self.totals, total, self.start, self.end)
        return self.buckets[place] if place < self.end else self.open

    def with_cost(self, bucket: int, cost: int) -> Series:
        """Return the series with ``cost`` more in ``bucket``, the open one or a later one."""
        buckets, totals, start, end, base, last, total = self
        if bucket == last or total == base:
            return _new(Series, (buckets, totals, start, end, base, bucket, total + cost))
        if len(buckets) != end or end == 0 or (start > _SLACK and start * 2 > end):
            # Another state has appended to the columns, or most of them is outside the window: copy the rest.
            buckets, totals, start, end, base, last, total = self._copy()
        buckets.append(last)
        totals.append(total)
        return _new(Series, (buckets, totals, start, end + 1, base, bucket, total + cost))

    def _copy(self) -> Series:
        """Return the same series in columns of its own."""
        own = slice(self.start, self.end)
        buckets = self.buckets[own]
        totals = array("q", [total - self.base for total in self.totals[own]])
        return _new(Series, (buckets, totals, 0, len(buckets), 0, self.open, self.total - self.base))

    def without(self, bucket: int, cost: int) -> Series | None:
        """Return the series with ``cost`` less in ``bucket``, if that is in the window; None when it is empty then.

        Earlier buckets stay in their columns, so the time grows only with the number of later buckets.
        """
        place = bisect_left(self.buckets, bucket, self.start, self.end)
        (first, held), *later = self.entries(place)
        if first != bucket:
            return self
        entries = [(bucket, held - cost), *later] if held > cost else later
        if place == self.start:
            return self.from_entries(entries)
        last = place - 1
        return self.from_entries(entries, self._replace(end=last, open=self.buckets[last], total=self.totals[last]))


_NOTHING: array[int] = array("q")


class TieredWindow(Algorithm):
    """Allows ``c`` when the costs in buckets above ``floor(t/precision) - P/precision``, plus ``c``, are at most N."""

    name = "tiered-window"

    def __init__(self, quota: Quota, precision: int | None = None) -> None:
        super().__init__(quota)
        self.precision = precision or _default_precision(self.period)
        if self.period % self.precision:
            expected = f"expected a precision that divides the period of {str(quota)!r}"
            raise ConfigError(f"{expected}; got {format_duration(self.precision)}", "precision")
        self.span = self.period // self.precision

    @property
    def lifetime(self) -> int:
        return self.period + self.precision

    @property
    def variant(self) -> str:
        return format_duration(self.precision)

    def decide(self, state: Series | None, now: int, cost: int) -> tuple[Series | None, Decision]:
        bucket = now // self.precision
        if state is None:
            seen = Series.single(bucket, 0)
        else:
            if bucket < state.open:
                bucket = state.open
            seen = state.since(bucket - self.span)
        starts = bucket * self.precision
        at = now if now > starts else starts
        room = self.amount - seen.total + seen.base
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else self._fits_after(seen, cost, now)
            return state, Decision(cost == 0, max(0, room), retry, self._fresh_after(seen, now), at)
        return seen.with_cost(bucket, cost), Decision(True, room - cost, 0, starts + self.period - now, at)

    def _fits_after(self, seen: Series, cost: int, now: int) -> int | None:
        """Microseconds until enough buckets have left the window for ``cost`` to fit."""
        must_leave = seen.total + cost - self.amount
        return None if cost > self.amount else (seen.bucket_at(must_leave) + self.span) * self.precision - now

    def _fresh_after(self, seen: Series, now: int) -> int:
        return (seen.open + self.span) * self.precision - now if seen.total > seen.base else 0

    def charge(self, state: Series | None, now: int, cost: int) -> Series:
        if state is None:
            return Series.single(now // self.precision, cost)
        bucket = max(now // self.precision, state.open)
        return state.since(bucket - self.span).with_cost(bucket, cost)

    def refund(self, state: Series | None, now: int, consumed: Charge, cost: int) -> Series | None:
        return None if state is None else state.without(consumed.at_us // self.precision, cost)

    def dump(self, state: Series) -> bytes:
        """Return the total before the window, the number of each bucket, the running total up to each: 8 bytes each."""
        if state.total > _REBASED_ABOVE:
            state = state._copy()
        own = slice(state.start, state.end)
        numbers = array("q", (state.base,)) + state.buckets[own] + array("q", (state.open,)) + state.totals[own]
        numbers.append(state.total)
        return numbers.tobytes()

    def load(self, data: bytes) -> Series:
        numbers = array("q", data)
        count = len(numbers) // 2
        buckets, totals = numbers[1 : count + 1], numbers[count + 1 :]
        if not count or len(totals) != count:
            raise ValueError(f"expected an odd number of fields of 8 bytes, at least 3; got {len(data)} bytes")
        return Series(buckets, totals, 0, count - 1, numbers[0], buckets.pop(), totals.pop())


class SlidingWindowLog(TieredWindow):
    """Allows a cost ``c`` when the costs in ``(t-P, t]``, plus ``c``, are at most N. N is at most 10,000."""

    name = "sliding-window-log"
    variant = ""

    def __init__(self, quota: Quota) -> None:
        if quota.amount > MAX_LOG:
            raise ConfigError(
                f"sliding-window-log keeps each hit, so its amount is at most {MAX_LOG:,}; got {quota.amount}."
                " Use tiered-window"
            )
        super().__init__(quota, precision=1)


class RejectionCountingLog(SlidingWindowLog):
    """The log with ``count_rejected``: a hit that it rejects is added, too.

    Only the newest entries that together reach N are kept. Older entries leave the window before they could change a
    decision, and the state stays bounded under attack.
    """

    variant = "count_rejected"

    def decide(self, state: Series | None, now: int, cost: int) -> tuple[Series | None, Decision]:
        kept, decision = super().decide(state, now, cost)
        if decision.allowed:
            return kept, decision
        seen = self.charge(state, now, cost).newest(self.amount)
        retry = self._fits_after(seen, cost, now)
        return seen, Decision(False, 0, retry, self._fresh_after(seen, now), seen.open)


def _default_precision(period: int) -> int:
    """Return the largest of 1 h, 1 min and 1 s that goes into the period at least 60 times, else a hundredth of it."""
    for size in (3600 * SECOND, 60 * SECOND, SECOND):
        if period % size == 0 and period // size >= 60:
            return size
    if period % 100:
        expected = f"expected a precision that divides the period {format_duration(period)}"
        raise ConfigError(f"{expected}; got none", "precision")
    return period // 100
