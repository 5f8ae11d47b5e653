"""CSV of the parts of the page (RFC 4180). No cell begins a formula."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Final

from .data import DashboardData, Json

Row = Iterable[object]
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Spreadsheets run a cell that starts with one of these."""


def csv_text(rows: Iterable[Row]) -> str:
    """Return rows as CSV. A text that would begin a formula begins with an apostrophe.

    >>> print(csv_text([["=1+1", "a, b", -1]]).strip())
    '=1+1,"a, b",-1
    """
    out = StringIO()
    csv.writer(out).writerows([_cell(each) for each in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode()  # a key may have half of a surrogate pair
    return f"'{text}" if text.startswith(_FORMULA) else text


def _curves(data: DashboardData) -> Iterable[Row]:
    """One row for each step, rule and outcome."""
    traffic = data.traffic
    kind = data.view.kind
    yield "time", kind, "outcome", "count"
    for source in traffic.get("curves", ()):
        start = datetime.fromisoformat(traffic["start"]).timestamp()
        for line, counts in source["lines"].items():
            for i, count in enumerate(counts):
                yield datetime.fromtimestamp(start + i * traffic["step"], UTC).isoformat(), source[kind], line, count


def _clients(data: DashboardData) -> Iterable[Row]:
    lists = {line: rows for line, rows in data.clients.items() if isinstance(rows, list)}
    return _table([{"outcome": line, **row} for line, rows in lists.items() for row in rows])


def _rules(data: DashboardData) -> Iterable[Row]:
    shown = [{name: "; ".join(lines) for name, lines in rule["shown"].items()} for rule in data.rules["rules"]]
    return _table([{**row, "place": rule["place"]} for row, rule in zip(shown, data.rules["rules"], strict=True)])


def _table(rows: list[Json]) -> Iterable[Row]:
    return [list(rows[0]), *(row.values() for row in rows)] if rows else []


TABLES: Final[Mapping[str, Callable[[DashboardData], Any]]] = {
    "curves.csv": _curves,
    "totals.csv": lambda data: _table(data.traffic.get("totals") or data.traffic.get("rules", [])),
    "clients.csv": _clients,
    "bans.csv": lambda data: _table(data.bans.get("bans", [])),
    "overrides.csv": lambda data: _table(data.overrides.get("overrides", [])),
    "rules.csv": _rules,
}
"""The rows of each file."""
