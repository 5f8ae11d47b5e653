"""A series of which parts are known only as sums: how decisions are made from it, and which part they hang on. Pure.

A part stands where it is last in sight, in the bucket of its end. What fits now depends on the sum alone, so that is
exact. When a rejection ends, and when all is fresh, depends on single buckets: those parts are read and made exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

from ...algorithms.window_log import Series, TieredWindow
from ...decision import Decision

__all__ = ["decisive", "series_of"]


def series_of(parts: Iterable[tuple[int, int]]) -> Series | None:
    """A state from (bucket, cost) in their order; those in one bucket count together."""
    merged: dict[int, int] = {}
    for bucket, cost in parts:
        merged[bucket] = merged.get(bucket, 0) + cost
    if not merged:
        return None
    *buckets, last = merged
    *totals, total = accumulate(merged.values())
    return Series(array("q", buckets), array("q", totals), 0, len(buckets), 0, last, total)


def decisive(algorithm: TieredWindow, decision: Decision, now: int, newest: int) -> set[int]:
    """The buckets that the times of a rejection or a look hang on."""
    found = set()
    if decision.reset_us:
        found.add(newest)
    if decision.retry_us:
        found.add((now + decision.retry_us) // algorithm.precision - algorithm.span)
    return found
