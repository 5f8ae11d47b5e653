"""The curves of the page: a card for each rule or endpoint. A script draws them from the data of the card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ..operations.times import seconds_of, span_text
from ..operations.traffic_report import COUNT
from .markup import Content, Markup, tag
from .tables import TableColumn, isolated, number, table
from .view import View

LABELS: Final = {COUNT: "count", "allowed": "allowed", "rejected": "rejected", "shadow": "would be rejected"}
"""The lines of a curve, in their order."""
_UPPER: Final = (COUNT, "allowed")
"""The lines with a scale of their own, because their counts are often much higher."""
NO_RULE: Final = "no rule"


def curve_cards(traffic: Mapping[str, Any], view: View) -> Content:
    """Return a card for each curve."""
    cards = [_card(i, series, traffic, view) for i, series in enumerate(traffic["curves"])]
    return tag("div", *cards, class_="cards one" if len(cards) == 1 else "cards")


def name_of(series: Mapping[str, Any], kind: str) -> str:
    """Return the name of a series. Requests without a rule have an empty one."""
    return series[kind] or NO_RULE


def _card(position: int, series: Mapping[str, Any], traffic: Mapping[str, Any], view: View) -> Markup:
    lines = {line: series["lines"][line] for line in LABELS if line in series["lines"]}
    name = name_of(series, view.kind)
    title = tag("a", isolated(name), href=view.link(name=series[view.kind]))
    mode = tag("span", "shadow", class_="badge") if series.get("mode") == "shadow" else None
    totals = [_legend(line, series["total"] if line == COUNT else series[line]) for line in lines]
    return tag(
        "article",
        tag("h3", title, mode),
        tag("p", *totals, class_="legend"),
        _plot(position, lines, traffic, name),
        tag("p", _peaks(lines, traffic), class_="readout"),
        _steps_table(lines, traffic, name) if view.name is not None else None,
        class_="card",
    )


def _legend(line: str, total: int) -> Markup:
    swatch, label = tag("i", class_=f"swatch {line}"), f" {LABELS[line]}"
    return tag("span", swatch, tag("b", number(total)), label, data_rejected=total if line == "rejected" else None)


def _plot(position: int, lines: Mapping[str, Sequence[int]], traffic: Mapping[str, Any], name: str) -> Markup:
    start = int(seconds_of(traffic["start"]))
    lanes = [
        [{"line": line, "label": LABELS[line], "counts": counts} for line, counts in lines.items() if is_in(line)]
        for is_in in (_UPPER.__contains__, lambda line: line not in _UPPER)
    ]
    data = {"start": start, "step": traffic["step"], "lanes": list(filter(None, lanes))}
    label = f"Curve of {name}: {_peaks(lines, traffic)}"
    return tag("div", class_="plot", id=f"plot-{position}", role="img", aria_label=label, data_curve=json.dumps(data))


def _peaks(lines: Mapping[str, Sequence[int]], traffic: Mapping[str, Any]) -> str:
    """Return the highest count of each line, in words."""
    peaks = [f"{max(counts):,} {LABELS[line]}" for line, counts in lines.items()]
    return f"at most {', '.join(peaks)} in {span_text(traffic['step'])}"


def _steps_table(lines: Mapping[str, Sequence[int]], traffic: Mapping[str, Any], name: str) -> Markup:
    """Return the curve as a table, the latest steps first."""
    start = seconds_of(traffic["start"])
    rows = [
        {"time": start + i * traffic["step"], **dict(zip(lines, counts, strict=True))}
        for i, counts in enumerate(zip(*lines.values(), strict=True))
    ]
    columns = [TableColumn("Start of the step (UTC)", lambda row: _minute(row["time"]))]
    columns += [TableColumn(LABELS[line], lambda row, line=line: number(row[line]), is_number=True) for line in lines]  # type: ignore[misc]
    content = table(f"Counts of {name} for each {span_text(traffic['step'])}", columns, reversed(rows))
    return tag("details", tag("summary", "Show the curve as a table"), content, id="steps")


def _minute(seconds: float) -> Markup:
    at = datetime.fromtimestamp(seconds, UTC)
    return tag("time", f"{at:%Y-%m-%d %H:%M}" + f":{at:%S}" * bool(at.second), datetime=at.isoformat())
