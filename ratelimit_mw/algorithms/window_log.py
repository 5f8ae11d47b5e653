"""sliding-window-log and tiered-window: what was counted in the buckets of ``precision`` that are still in sight.

The log is the tiered window whose buckets are one microsecond wide. A state is a view of two arrays that it shares
with the states before it, and that are only appended to: the numbers of the closed buckets, and the running total
up to each. So a hit costs two binary searches, whatever N is.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..clock import SECOND
from ..decision import Decision, Spent
from ..errors import ConfigError
from ..quota import Quota, format_duration
from .base import Algorithm

__all__ = ["Series", "SlidingWindowLog", "TieredWindow"]

MAX_LOG = 10_000
_SLACK = 64


class Series(NamedTuple):
    """Closed buckets ``start..end`` of the shared arrays, and the open one after them.

    ``base`` is the running total before ``start``, ``total`` the one with the open bucket in it.
    """

    buckets: array[int]
    totals: array[int]
    start: int
    end: int
    base: int
    open: int
    total: int

    @classmethod
    def of(cls, bucket: int, cost: int) -> Series:
        return cls(_NOTHING, _NOTHING, 0, 0, 0, bucket, cost)

    def entries(self) -> list[tuple[int, int]]:
        """(bucket, cost) of each bucket, oldest first."""
        found, before = [], self.base
        for i in range(self.start, self.end):
            found.append((self.buckets[i], self.totals[i] - before))
            before = self.totals[i]
        return [*found, (self.open, self.total - before)]

    @classmethod
    def from_entries(cls, entries: list[tuple[int, int]]) -> Series | None:
        """The inverse of ``entries``; None without any."""
        state: Series | None = None
        for bucket, cost in entries:
            state = cls.of(bucket, cost) if state is None else state.added(bucket, cost)
        return state

    def since(self, horizon: int) -> Series:
        """Without the buckets up to ``horizon``. The arrays stay as they are."""
        buckets, totals, start, end, _, last, total = self
        if last <= horizon:
            return Series.of(last, 0)
        if start == end or buckets[start] > horizon:
            return self
        start = bisect_right(buckets, horizon, start, end)
        return _series((buckets, totals, start, end, totals[start - 1], last, total))

    def added(self, bucket: int, cost: int) -> Series:
        """With ``cost`` in ``bucket``, which is the open one or a later one."""
        buckets, totals, start, end, base, last, total = self
        if bucket == last or total == base:
            return _series((buckets, totals, start, end, base, bucket, total + cost))
        if len(buckets) != end or end == 0 or (start > _SLACK and start * 2 > end):
            # Another successor has the arrays' end, or most of them is out of sight: go on in arrays of our own.
            buckets, totals = buckets[start:end], array("q", [t - base for t in totals[start:end]])
            start, end, base, total = 0, end - start, 0, total - base
        buckets.append(last)
        totals.append(total)
        return _series((buckets, totals, start, end + 1, base, bucket, total + cost))


_NOTHING: array[int] = array("q")

_series: Callable[[tuple[array[int], array[int], int, int, int, int, int]], Series] = partial(tuple.__new__, Series)
"""``Series`` from its seven fields, twice as fast as calling the class."""


class TieredWindow(Algorithm):
    """Allowed when the costs in buckets above ``floor(t/precision) - P/precision``, plus ``c``, are at most N."""

    name = "tiered-window"

    def __init__(self, quota: Quota, precision: int | None = None) -> None:
        super().__init__(quota)
        self.precision = precision or _default_precision(self.period)
        if self.period % self.precision:
            raise ConfigError(
                f"the period of {str(quota)!r} is not a multiple of the precision {format_duration(self.precision)}",
                "precision",
            )
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
            seen = Series.of(bucket, 0)
        else:
            if bucket < state.open:
                bucket = state.open
            seen = state.since(bucket - self.span)
        room = self.amount - seen.total + seen.base
        if cost == 0 or cost > room:
            retry = 0 if cost == 0 else self._fits_after(seen, cost, now)
            return state, Decision(cost == 0, max(0, room), retry, self._fresh_after(seen, now), now)
        starts = bucket * self.precision
        reset = starts + self.period - now
        return seen.added(bucket, cost), Decision(True, room - cost, 0, reset, now if now > starts else starts)

    def _fits_after(self, seen: Series, cost: int, now: int) -> int | None:
        """Microseconds until enough buckets have left for ``cost`` to fit."""
        if cost > self.amount:
            return None
        must_leave = seen.total + cost - self.amount
        i = bisect_left(seen.totals, must_leave, seen.start, seen.end)
        last = seen.buckets[i] if i < seen.end else seen.open
        return (last + self.span) * self.precision - now

    def _fresh_after(self, seen: Series, now: int) -> int:
        return (seen.open + self.span) * self.precision - now if seen.total > seen.base else 0

    def charge(self, state: Series | None, now: int, cost: int) -> Series | None:
        bucket = now // self.precision
        if state is None:
            return Series.of(bucket, cost)
        bucket = max(bucket, state.open)
        return state.since(bucket - self.span).added(bucket, cost)

    def give_back(self, state: Series | None, now: int, spent: Spent, cost: int) -> Series | None:
        if state is None:
            return None
        bucket = spent.at_us // self.precision
        left = [(b, max(0, c - cost) if b == bucket else c) for b, c in state.entries()]
        return Series.from_entries([(b, c) for b, c in left if c])

    def dump(self, state: Series) -> bytes:
        """The buckets that hold something, oldest first: number, cost, number, cost..."""
        numbers = [number for entry in state.entries() for number in entry]
        return struct.pack(f"<{len(numbers)}q", *numbers)

    def load(self, data: bytes) -> Series | None:
        if len(data) % 16:
            raise ValueError(f"expected pairs of 8 bytes each, got {len(data)} bytes")
        return Series.from_entries(list(struct.iter_unpack("<qq", data)))


class SlidingWindowLog(TieredWindow):
    """Allowed when the costs counted in ``(t-P, t]``, plus ``c``, are at most N; N is at most 10,000."""

    name = "sliding-window-log"

    def __init__(self, quota: Quota) -> None:
        if quota.amount > MAX_LOG:
            raise ConfigError(
                f"sliding-window-log keeps each hit, so its amount is at most {MAX_LOG}, not {quota.amount};"
                " use tiered-window"
            )
        super().__init__(quota, precision=1)

    @property
    def variant(self) -> str:
        return ""


class RefusalCountingLog(SlidingWindowLog):
    """The log with ``count_refused``: a hit that it refuses enters it too.

    Only the newest entries that together reach N are kept: older ones leave before they could matter, and the
    state stays bounded under attack.
    """

    @property
    def variant(self) -> str:
        return "count_refused"

    def decide(self, state: Series | None, now: int, cost: int) -> tuple[Series | None, Decision]:
        kept, decision = super().decide(state, now, cost)
        if decision.allowed:
            return kept, decision
        bucket = now if state is None else max(now, state.open)
        seen = Series.of(bucket, cost) if state is None else state.since(bucket - self.span).added(bucket, cost)
        seen = self._newest(seen)
        retry = self._fits_after(seen, cost, now)
        return seen, Decision(False, 0, retry, self._fresh_after(seen, now), bucket)

    def _newest(self, seen: Series) -> Series:
        keep_from = bisect_right(seen.totals, seen.total - self.amount, seen.start, seen.end)
        return seen if keep_from == seen.start else seen._replace(start=keep_from, base=seen.totals[keep_from - 1])


def _default_precision(period: int) -> int:
    """The largest of 1 h, 1 min and 1 s that goes into the period at least 60 times, else a hundredth of it."""
    for size in (3600 * SECOND, 60 * SECOND, SECOND):
        if period % size == 0 and period // size >= 60:
            return size
    if period % 100:
        raise ConfigError(f"a period of {format_duration(period)} needs a precision that divides it", "precision")
    return period // 100
