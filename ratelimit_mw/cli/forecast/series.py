"""Counts events of a traffic log by hour."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from ...clock import SECOND, now_us
from ...stores import redacted_url
from ..clients import open_log
from ..output import Failure

HOUR: Final = 3600
_MOST: Final = 26 * 7 * 24
"""The most hours of a series: half a year. Earlier ones are left out."""
_GAP: Final = 7 * 24
"""The most hours without a request. Those before a longer gap are left out: the log was off, or a time is wrong."""


class HourlyCounts(NamedTuple):
    """The counts of whole hours, without a gap. ``start`` is in seconds since 1970."""

    start: int
    counts: list[int]

    @property
    def end(self) -> int:
        return self.start + HOUR * len(self.counts)

    @property
    def period(self) -> str:
        moments = (datetime.fromtimestamp(each, UTC) for each in (self.start, self.end))
        return "{:%Y-%m-%d %H:%M} to {:%Y-%m-%d %H:%M} UTC".format(*moments)


def count_traffic_log(url: str, events: Sequence[str]) -> HourlyCounts:
    """Count events of a traffic log together, as far back as the log keeps hours."""
    log, end = open_log(url), now_us() // SECOND // HOUR * HOUR
    try:
        for days in (_MOST // 24, 90, 28, 7, 4):
            start = end - (24 * days - 1) * HOUR  # within the retention, also later in this hour
            curves = [log.curve(event, start, end, points=_MOST + 2) for event in events]
            if HOUR % curves[0].step == 0:
                break
        else:
            message = "the log keeps no hours of the last three days. Give it a retention such as 1h:90d"
            raise Failure(f"{redacted_url(url)}: {message}")
    finally:
        log.close()
    found = Counter[int]()
    for curve in curves:
        for at, number in zip(range(curve.start, curve.end, curve.step), curve.counts, strict=True):
            found[at // HOUR] += number
    if not found.total():
        message = f"no record of {', '.join(events)} by the hour in the last {_MOST // 24} days"
        raise Failure(f"{redacted_url(url)}: {message}")
    return _without_ends(found)


def _without_ends(found: Counter[int]) -> HourlyCounts:
    """Return the whole hours of a log since its last gap: the first and the last hour may be cut."""
    hours = sorted((hour for hour, number in found.items() if number), reverse=True)
    gap = next((i for i, (later, hour) in enumerate(pairwise(hours), 1) if later - hour > _GAP), len(hours))
    first, last = (hours[gap - 1] + 1, hours[0]) if hours else (0, 0)
    first = max(first, last - _MOST)
    return HourlyCounts(first * HOUR, [found[hour] for hour in range(first, last)])
