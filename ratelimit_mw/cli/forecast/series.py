"""Counts events of a traffic log by hour."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Final, NamedTuple

from ...clock import SECOND, now_us
from ...stores import redacted_url
from ..clients import open_log
from ..output import Failure

HOUR: Final = 3600
_DAYS: Final = (182, 90, 28, 7, 4)
"""The days that are tried: a log keeps hours for some of them. A series has at most the first, half a year."""


class HourlyCounts(NamedTuple):
    """The counts of whole hours, one after the other. ``start`` is in seconds since 1970."""

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
    """Count events of a traffic log together, as far back as the log keeps hours.

    The first and the last hour with a request are left out: they may be cut.
    """
    with closing(open_log(url)) as log:
        end = now_us() // SECOND // HOUR * HOUR
        for days in _DAYS:
            start = end - (24 * days - 1) * HOUR  # within the retention, also later in this hour
            curves = [log.curve(event, start, end, points=24 * _DAYS[0] + 2) for event in events]
            if HOUR % curves[0].step == 0:
                break
        else:
            message = "the log keeps no hours of the last three days. Give it a retention such as 1h:90d"
            raise Failure(f"{redacted_url(url)}: {message}")
    found = Counter[int]()
    for curve in curves:
        for at, number in zip(range(curve.start, curve.end, curve.step), curve.counts, strict=True):
            found[at // HOUR] += number
    hours = [hour for hour, number in found.items() if number]
    if not hours:
        message = f"no record of {', '.join(events)} by the hour in the last {_DAYS[0]} days"
        raise Failure(f"{redacted_url(url)}: {message}")
    first, last = min(hours) + 1, max(hours)
    return HourlyCounts(first * HOUR, [found[hour] for hour in range(first, last)])
