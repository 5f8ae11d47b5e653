"""The elements of the page: tables, numbers, times and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ..traffic.estimate import error_of
from .markup import Content, Markup, join, tag

Row = Mapping[str, Any]


class TableColumn(NamedTuple):
    """A column of a table: its heading, the content of a cell, and whether the cells are numbers."""

    heading: str
    cell: Callable[[Row], Content]
    is_number: bool = False


def text_column(heading: str, field: str) -> TableColumn:
    """Return a column of texts, which clients may have chosen."""
    return TableColumn(heading, lambda row: isolated(row[field]))


def number_column(heading: str, field: str) -> TableColumn:
    return TableColumn(heading, lambda row: number(row[field]), is_number=True)


def table(caption: str, columns: Iterable[TableColumn], rows: Iterable[Row], is_hidden: bool = False) -> Markup:
    """Return a table, whose first column names its rows. It scrolls where it is too wide."""
    columns = list(columns)
    head = tag("tr", [tag("th", each.heading, scope="col", class_=_class(each)) for each in columns])
    body = [tag("tr", [_cell(i, each, row) for i, each in enumerate(columns)]) for row in rows]
    titled = tag("caption", caption, class_="hidden" if is_hidden else None)
    content = tag("table", titled, tag("thead", head), tag("tbody", *body))
    return tag("div", content, class_="scroll", tabindex="0", role="group", aria_label=caption)


def isolated(text: str) -> Markup:
    """Return a text whose direction does not change that of the page."""
    return tag("bdi", text)


def lines(texts: Iterable[str]) -> Content:
    """Return texts below each other."""
    return [tag("div", isolated(text)) for text in texts]


def number(value: int, error: int | None = None) -> Markup:
    """Return a number with separators, and its bound where it is an estimate.

    >>> print(number(1200), number(1200, 40))
    1,200 about 1,200 ± 40
    """
    bound = error_of(value) if error is None else error
    return join(f"about {value:,} \N{PLUS-MINUS SIGN} {bound:,}" if bound else f"{value:,}")


def moment(text: str) -> Markup:
    """Return a time of JSON as people read it, in UTC."""
    return tag("time", f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S}", datetime=text)


def note(*content: Content) -> Markup:
    return tag("p", *content, class_="note")


def code_text(text: str) -> Content:
    """Return a sentence whose settings are code: they are between backquotes.

    >>> print(join(code_text("Add `ban` to it.")))
    Add <code>ban</code> to it.
    """
    return [tag("code", part) if i % 2 else part for i, part in enumerate(text.split("`"))]


def _cell(position: int, column: TableColumn, row: Row) -> Markup:
    if position == 0:
        return tag("th", column.cell(row), scope="row")
    return tag("td", column.cell(row), class_=_class(column))


def _class(column: TableColumn) -> str | None:
    return "number" if column.is_number else None
