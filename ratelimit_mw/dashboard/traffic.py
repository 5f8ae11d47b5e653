"""The counts of a traffic log, per rule and per endpoint: their totals, and the curves of the largest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..operations.times import seconds_of, span_text, time_json
from ..operations.traffic_report import COUNT, Kind, TrafficSeries, clients_of, missing_text, read_series, total_json
from ..rules.ruleset import RuleSet
from ..traffic import Curve, TrafficLog
from .view import View

LABELS: Final = {
    COUNT: "count",
    "allowed": "allowed",
    "rejected": "rejected",
    "shadow": "would be rejected",
    "limit": "limit",
    "in_flight": "in flight",
}
"""The lines of a curve, in their order."""
_MOST_CURVES: Final = 20
_MOST_ROWS: Final = 50
_MOST_NAMES: Final = 200
_MOST_CLIENTS: Final = 20


def read_traffic(log: TrafficLog, view: View, now: float, rules: RuleSet) -> dict[str, Any]:
    """Return the totals of a view as JSON, with the curves of the largest."""
    start, end = view.span(now)
    kinds = read_series(log, start, end, rules)
    several = kinds.get(view.kind, [])
    chosen = [each for each in several if view.name in (None, each.name)]
    drawn = chosen[:_MOST_CURVES]
    events = [event for each in drawn for events in each.lines().values() for event in events]
    curves = log.curves(events, start, end)
    order = {name: position for position, name in enumerate(rules.by_name)}
    drawn.sort(key=lambda each: (order.get(each.name, len(order)), each.name))
    steps = _steps(curves.values())
    shown = [_curve_json(each, curves, steps["step"], rules) for each in drawn]
    return {
        "log": log.name,
        "from": time_json(start),
        "to": time_json(end),
        "by": view.kind,
        "name": view.name,
        "kinds": {kind: len(each) for kind, each in kinds.items()},
        "names": sorted(each.name for each in several[:_MOST_NAMES]),
        "totals": [total_json(each, rules) for each in chosen[:_MOST_ROWS]],
        "totals_left_out": max(0, len(chosen) - _MOST_ROWS),
        **steps,
        "curves": shown,
        "curves_left_out": len(chosen) - len(drawn),
        **({} if view.name is None or not shown else {"steps": _rows(shown[0]["lines"], **steps)}),
    }


def read_clients(log: TrafficLog, view: View, now: float, rules: RuleSet) -> dict[str, Any]:
    """Return the clients with the highest counts of the rules of a view as JSON, per outcome.

    Below the count ``complete_from``, clients may be missing.
    """
    start, end = view.span(now)
    kind: Kind = "event" if view.kind == "event" else "rule"  # endpoints have no clients
    name = view.name if kind == view.kind else None
    several = [each for each in read_series(log, start, end, rules).get(kind, []) if name in (None, each.name)]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    complete_from = 1
    for series in several[:_MOST_CURVES]:
        for line, events in series.lines().items():
            clients = clients_of(log, series, events, start, end, rules, _MOST_CLIENTS)
            complete_from = max(complete_from, clients.complete_from)
            found[line] += [{kind: series.name, "client": client, "total": total} for client, total in clients]
    for line, rows in found.items():
        found[line] = sorted(rows, key=lambda row: -row["total"])[:_MOST_CLIENTS]
    shown = {line: rows for line, rows in found.items() if rows}
    return {**shown, "complete_from": complete_from, "note": missing_text(complete_from)}


def _steps(curves: Iterable[Curve]) -> dict[str, Any]:
    """Return the start of the curves and their step in seconds."""
    curve = next(iter(curves), None)
    return {"start": None, "step": None} if curve is None else {"start": time_json(curve.start), "step": curve.step}


def _curve_json(series: TrafficSeries, curves: Mapping[str, Curve], step: int, rules: RuleSet) -> dict[str, Any]:
    lines = {
        line: [sum(column) for column in zip(*(curves[event].counts for event in events), strict=True)]
        for line, events in series.lines().items()
    }
    peaks = ", ".join(f"{max(counts):,} {LABELS[line]}" for line, counts in lines.items())
    total = total_json(series, rules)
    peaks = f"at most {peaks} in {span_text(step)}"
    return {**total, "is_shadow": total.get("mode") == "shadow", "lines": lines, "peaks": peaks}


def _rows(lines: Mapping[str, Sequence[int]], start: str, step: int) -> list[dict[str, Any]]:
    """Return the counts of each step, the latest first."""
    at, counts = seconds_of(start), zip(*lines.values(), strict=True)
    rows = [{"time": time_json(at + i * step), **dict(zip(lines, each, strict=True))} for i, each in enumerate(counts)]
    return rows[::-1]
