"""Limits for a background class, which fit below the peak of a forecast: ``limits`` and a ``schedule``."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ...rules.schedule import DAYS
from .series import HOUR

_HOURS: Final = range(24)
_PER_MINUTE_FROM: Final = 600
_QUIET: Final = 0.1
"""The least share of the peak that a schedule is worth."""


def background_settings(start: int, counts: Sequence[float], margin: float) -> dict[str, Any]:
    """Return the options of a rule for background requests, so that all requests stay below the peak of a forecast.

    There are two amounts: one for the busy hours, and one for the rest. They are those that allow most requests. No
    amount is below one request per hour. Without quiet hours, there is no schedule.

    Args:
        start: The time of the first count, in seconds since 1970.
        counts: The forecast of the next day or the next week, by hour.
        margin: The requests per hour by which the forecast may be too low.
    """
    free = [max(1, int(max(counts) - margin - count)) for count in counts]
    low = min(free)
    high = max(sorted(set(free)), key=lambda amount: sum(amount if each >= amount else low for each in free))
    if high < _QUIET * max(counts):
        return {"limits": [_quota(low)]}
    moments = [datetime.fromtimestamp(start + i * HOUR, UTC) for i in range(len(counts))]
    busy = [moment for moment, amount in zip(moments, free, strict=True) if amount < high]
    schedule = {text: [_quota(low)] for text in _ranges(busy, len(counts) > len(_HOURS))}
    return {"limits": [_quota(high)], **({"schedule": schedule, "timezone": "UTC"} if schedule else {})}


def _quota(amount: int) -> str:
    return f"{amount // 60}/minute" if amount >= _PER_MINUTE_FROM else f"{amount}/hour"


def _ranges(busy: Iterable[datetime], has_days: bool) -> list[str]:
    """Return the ranges of a schedule for these hours. Days with the same hours are in one range."""
    hours: dict[int, list[int]] = {}
    for moment in sorted(busy, key=lambda moment: moment.hour):
        hours.setdefault(moment.weekday() if has_days else 0, []).append(moment.hour)
    days: dict[tuple[int, int], list[int]] = {}
    for day, of_day in sorted(hours.items()):
        for run in _runs(of_day):
            days.setdefault(run, []).append(day)
    names = {run: f"{_days_text(each)} " if has_days else "" for run, each in days.items()}
    return [f"{names[first, last]}{first:02}:00-{last + 1:02}:00" for first, last in sorted(days)]


def _days_text(days: Sequence[int]) -> str:
    return ",".join(DAYS[first] if first == last else f"{DAYS[first]}-{DAYS[last]}" for first, last in _runs(days))


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive numbers, which are sorted."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
