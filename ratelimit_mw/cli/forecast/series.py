"""Counts the requests of a log by hour: of access logs, or of one event of a traffic log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ...clock import SECOND, now_us
from ...settings import load_settings
from ...stores import redacted_url
from ...traffic import TrafficLog
from ..json_lines import LineParser
from ..output import Failure
from ..replay.logs import open_logs
from ..replay.simulation import Simulation

HOUR: Final = 3600
_MOST: Final = 26 * 7 * 24
"""The most hours of a series: half a year. Earlier ones are left out."""
_GAP: Final = 7 * 24
"""The most hours without a request. Those before a longer gap are left out: the log was off, or a time is wrong."""


class HourlyCounts(NamedTuple):
    """The counts of whole hours, without a gap. ``start`` is in seconds since 1970."""

    start: int
    counts: list[int]
    formats: Mapping[str, int] = {}
    """The formats of access logs, with the number of their lines."""

    @property
    def end(self) -> int:
        return self.start + HOUR * len(self.counts)

    @property
    def period(self) -> str:
        moments = (datetime.fromtimestamp(each, UTC) for each in (self.start, self.end))
        return "{:%Y-%m-%d %H:%M} to {:%Y-%m-%d %H:%M} UTC".format(*moments)


def count_access_logs(
    paths: tuple[str, ...], rule: str | None, file: Path | None, fields: dict[str, str]
) -> HourlyCounts:
    """Count the requests of access logs. With a rule of a settings file, count those that the rule applies to."""
    simulation = None if rule is None or file is None else _simulation(rule, file)
    needs = (
        [simulation.client.header, *(name for each in simulation.rules for name in each.needs)] if simulation else []
    )
    hours, requests = Counter[int](), 0
    with open_logs(paths, LineParser(fields, needs), "counting") as logs:
        for entry in logs:
            requests += 1
            if simulation is None or simulation.decide(entry).decisions:
                hours[int(entry.time) // HOUR] += 1
    logs.finish(requests)
    return _without_ends(hours)._replace(formats=logs.formats)


def _simulation(name: str, file: Path) -> Simulation:
    settings = load_settings(file)
    rules = tuple(rule for i, rule in enumerate(settings.rules) if name == (rule.name or f"rule-{i + 1}"))
    if not rules:
        raise Failure(f"{file}: there is no rule {name!r}")
    return Simulation(replace(settings, rules=rules))


def count_traffic_log(url: str, events: Sequence[str]) -> HourlyCounts:
    """Count events of a traffic log together, as far back as the log keeps hours."""
    log, end = TrafficLog.open(url), now_us() // SECOND // HOUR * HOUR
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
