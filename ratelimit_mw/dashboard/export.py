"""CSV of the parts of the page (RFC 4180). No cell begins a formula."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from io import StringIO
from typing import Final, NamedTuple, get_args

from ..limiter.observers.events import Outcome
from ..limiter.times import seconds_of
from .recent import Json

Row = Iterable[object]
_FORMULA: Final = tuple("=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}"
                         "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""Spreadsheets run a cell that starts with one of these, some of them even after spaces."""

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A terminal would obey these, and click would remove some of them."""
_COUNTS: Final = ("total", *get_args(Outcome), "share", "shadow_share", "error")
_RULE: Final = ("rule", "mode", *_COUNTS)
_EVENT: Final = ("event", "total", "error")
_CLIENT: Final = ("outcome", "rule", "client", "total", "error")
_OVERRIDE: Final = ("rule", "client", "limits", "until", "key")
_BAN: Final = ("rule", "client", "quota", "unit", "mode", "allowed", "banned", "limit", "remaining", "retry_after",
               "until", "reset_after", "reset_at", "key")  # fmt: skip


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
    text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
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


def _totals(traffic: Json) -> Iterable[Row]:
    columns = {"event": _EVENT, "endpoint": ("endpoint", *_COUNTS)}.get(traffic.get("by", "rule"), _RULE)
    return _table(traffic["totals"], columns)


def _clients(clients: Json) -> Iterable[Row]:
    lists = {line: rows for line, rows in clients.items() if isinstance(rows, list)}
    return _table([{"outcome": line, **row} for line, rows in lists.items() for row in rows], _CLIENT)


def _rules(rules: Json) -> Iterable[Row]:
    shown = [{name: "; ".join(lines) for name, lines in rule["shown"].items()} for rule in rules["rules"]]
    rows = [{**row, "place": rule["place"]} for row, rule in zip(shown, rules["rules"], strict=True)]
    return _table(rows, ("rule", "place"))


def _table(rows: list[Json], columns: Iterable[str]) -> Iterable[Row]:
    """Return rows below their columns. A file without rows has these columns, so that a program can read it."""
    return [list(rows[0] if rows else columns), *(row.values() for row in rows)]


class CsvFile(NamedTuple):
    """The name of the part of a file, and its rows."""

    part: str
    rows: Callable[[Json], Iterable[Row]]


FILES: Final[Mapping[str, CsvFile]] = {
    "curves.csv": CsvFile("traffic", _curves),
    "totals.csv": CsvFile("traffic", _totals),
    "clients.csv": CsvFile("clients", _clients),
    "bans.csv": CsvFile("bans", lambda bans: _table(bans["bans"], _BAN)),
    "overrides.csv": CsvFile("overrides", lambda overrides: _table(overrides["overrides"], _OVERRIDE)),
    "rules.csv": CsvFile("rules", _rules),
}
