"""CSV of the parts of the page (RFC 4180). No cell begins a formula."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from io import StringIO
from typing import Final, NamedTuple

from ..limiter.times import seconds_of
from .recent import Json

Row = Iterable[object]
_FORMULA: Final = tuple("=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}"
                         "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""Spreadsheets run a cell that starts with one of these, some of them even after spaces."""


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
    return f"'{text}" if text.lstrip().startswith(_FORMULA) or text[:1].isspace() else text


def _curves(traffic: Json) -> Iterable[Row]:
    """One row for each step, rule and outcome."""
    kind = traffic.get("by", "rule")
    yield "time", kind, "outcome", "count"
    for source in traffic.get("curves", ()):
        start = seconds_of(traffic["start"])
        for line, counts in source["lines"].items():
            for i, count in enumerate(counts):
                yield datetime.fromtimestamp(start + i * traffic["step"], UTC).isoformat(), source[kind], line, count


def _clients(clients: Json) -> Iterable[Row]:
    lists = {line: rows for line, rows in clients.items() if isinstance(rows, list)}
    return _table([{"outcome": line, **row} for line, rows in lists.items() for row in rows])


def _rules(rules: Json) -> Iterable[Row]:
    shown = [{name: "; ".join(lines) for name, lines in rule["shown"].items()} for rule in rules["rules"]]
    return _table([{**row, "place": rule["place"]} for row, rule in zip(shown, rules["rules"], strict=True)])


def _table(rows: list[Json]) -> Iterable[Row]:
    return [list(rows[0]), *(row.values() for row in rows)] if rows else []


class CsvFile(NamedTuple):
    """The name of the part of a file, and its rows."""

    part: str
    rows: Callable[[Json], Iterable[Row]]


FILES: Final[Mapping[str, CsvFile]] = {
    "curves.csv": CsvFile("traffic", _curves),
    "totals.csv": CsvFile("traffic", lambda traffic: _table(traffic.get("totals") or traffic.get("rules", []))),
    "clients.csv": CsvFile("clients", _clients),
    "bans.csv": CsvFile("bans", lambda bans: _table(bans["bans"])),
    "overrides.csv": CsvFile("overrides", lambda overrides: _table(overrides["overrides"])),
    "rules.csv": CsvFile("rules", _rules),
}
