"""The counts of a traffic log, per rule and per endpoint: their totals, and the curves of the largest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, get_args

from ..limiter.json_forms import client_text, shares
from ..limiter.observers.events import REJECTED, Outcome
from ..limiter.times import time_json
from ..rules.ruleset import RuleSet
from ..traffic import Curve, TrafficLog
from ..traffic.estimate import add_up, error_of
from .view import Kind, View

COUNT: Final = "count"
"""The outcome of an event that is not a decision of the limiter."""
_MOST_CURVES: Final = 20
_MOST_ROWS: Final = 50
_MOST_NAMES: Final = 200
_MOST_CLIENTS: Final = 20
_OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)


class TrafficSeries(NamedTuple):
    """A rule, an endpoint or an event: its counts by outcome."""

    kind: Kind
    name: str
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return add_up(self.counts.values())

    def event(self, outcome: str) -> str:
        """Return the event of an outcome. Requests without a rule have events of their own."""
        if self.kind == "event":
            return self.name
        return f"{self.kind}:{self.name}:{outcome}" if self.name else f"request:{outcome}"

    def lines(self) -> dict[str, list[str]]:
        """Return the events of each curve by its name: all outcomes of a rejection are one."""
        lines: dict[str, list[str]] = defaultdict(list)
        for outcome in sorted(self.counts, key=(*_OUTCOMES, COUNT).index):
            lines["rejected" if outcome in REJECTED else outcome].append(self.event(outcome))
        return lines


def read_series(log: TrafficLog, start: float, end: float) -> dict[Kind, list[TrafficSeries]]:
    """Return the counts of a time range by kind, the largest first. An empty kind is left out."""
    found: dict[tuple[Kind, str], TrafficSeries] = {}
    for event, number in log.events(start, end).items():
        kind, name, outcome = _parts(event)
        found.setdefault((kind, name), TrafficSeries(kind, name, {})).counts[outcome] = number
    kinds: dict[Kind, list[TrafficSeries]] = defaultdict(list)
    for series in sorted(found.values(), key=lambda each: -each.total):
        kinds[series.kind].append(series)
    return dict(kinds)


def read_traffic(log: TrafficLog, view: View, now: float, rules: RuleSet) -> dict[str, Any]:
    """Return the totals of a view as JSON, with the curves of the largest."""
    start, end = view.span(now)
    kinds = read_series(log, start, end)
    several = kinds.get(view.kind, [])
    chosen = [each for each in several if view.name in (None, each.name)]
    drawn = _largest(chosen)
    events = [event for each in drawn for events in each.lines().values() for event in events]
    curves = log.curves(events, start, end)
    order = {name: position for position, name in enumerate(rules.by_name)}
    drawn.sort(key=lambda each: (order.get(each.name, len(order)), each.name))
    return {
        "log": log.name,
        "from": time_json(start),
        "to": time_json(end),
        "by": view.kind,
        "name": view.name,
        "kinds": {kind: len(each) for kind, each in kinds.items()},
        "names": sorted(each.name for each in several[:_MOST_NAMES]),
        "totals": [_total_json(each, rules) for each in chosen[:_MOST_ROWS]],
        "totals_left_out": max(0, len(chosen) - _MOST_ROWS),
        **_steps(curves.values()),
        "curves": [{**_total_json(each, rules), "lines": _lines_json(each, curves)} for each in drawn],
        "curves_left_out": len(chosen) - len(drawn),
    }


def read_clients(log: TrafficLog, view: View, now: float, rules: RuleSet) -> dict[str, Any]:
    """Return the clients with the highest counts of the rules of a view as JSON, per outcome."""
    start, end = view.span(now)
    kind: Kind = "event" if view.kind == "event" else "rule"  # endpoints have no clients
    name = view.name if kind == view.kind else None
    several = [each for each in read_series(log, start, end).get(kind, []) if name in (None, each.name)]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for series in _largest(several):
        for line, events in series.lines().items():
            found[line] += [
                {kind: series.name, "client": client, "total": total, "error": error_of(total)}
                for client, total in _clients_of(log, series, events, start, end, rules).items()
            ]
    return {line: sorted(rows, key=lambda row: -row["total"])[:_MOST_CLIENTS] for line, rows in found.items() if rows}


def _clients_of(
    log: TrafficLog, series: TrafficSeries, events: Iterable[str], start: float, end: float, rules: RuleSet
) -> dict[str, int]:
    """Return the clients with the highest counts of some events, which are one line."""
    totals: dict[str, list[int]] = defaultdict(list)
    for event in events:
        for each in log.top(event, start, end, _MOST_CLIENTS):
            is_rule = series.kind == "rule"
            totals[client_text(each.client, series.name, rules) if is_rule else each.client].append(each.total)
    return {client: add_up(counts) for client, counts in totals.items()}


def _parts(event: str) -> tuple[Kind, str, str]:
    """Return the kind, the name and the outcome of an event.

    >>> _parts("rule:api:rejected"), _parts("request:denied"), _parts("url_shorten")
    (('rule', 'api', 'rejected'), ('rule', '', 'denied'), ('event', 'url_shorten', 'count'))
    """
    start, _, outcome = event.rpartition(":")
    kind, _, name = start.partition(":")
    if outcome in _OUTCOMES:
        if start == "request":
            return "rule", "", outcome
        if kind in ("rule", "endpoint") and name:
            return kind, name, outcome  # type: ignore[return-value]
    return "event", event, COUNT


def _largest(several: Iterable[TrafficSeries]) -> list[TrafficSeries]:
    """Return the first series that together have at most 20 curves: at least one."""
    drawn: list[TrafficSeries] = []
    left = _MOST_CURVES
    for series in several:
        left -= len(series.lines())
        if left < 0 and drawn:
            break
        drawn.append(series)
    return drawn


def _total_json(series: TrafficSeries, rules: RuleSet) -> dict[str, Any]:
    """Return the counts of a series. ``rejected`` includes all rejections, as in the command ``report``."""
    rule = rules.by_name.get(series.name) if series.kind == "rule" else None
    if series.kind == "event":
        return {"event": series.name, "total": series.total, "error": error_of(series.total)}
    counts = {outcome: series.counts.get(outcome, 0) for outcome in _OUTCOMES}
    counts["rejected"] = add_up(counts[outcome] for outcome in REJECTED)
    mode = {"mode": rule.source.mode if rule else ""} if series.kind == "rule" else {}
    return {
        series.kind: series.name,
        **mode,
        "total": series.total,
        **counts,
        **shares(counts, series.total),
        "error": error_of(series.total),
    }


def _steps(curves: Iterable[Curve]) -> dict[str, Any]:
    """Return the start of the curves and their step in seconds."""
    curve = next(iter(curves), None)
    return {"start": None, "step": None} if curve is None else {"start": time_json(curve.start), "step": curve.step}


def _lines_json(series: TrafficSeries, curves: Mapping[str, Curve]) -> dict[str, list[int]]:
    return {
        line: [sum(column) for column in zip(*(curves[event].counts for event in events), strict=True)]
        for line, events in series.lines().items()
    }
