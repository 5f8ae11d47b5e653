"""Rows as CSV (RFC 4180). No cell begins a formula."""

import csv
import re
from collections.abc import Iterable
from io import StringIO
from typing import Final

_FORMULA: Final = tuple("=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}"
                         "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
"""Spreadsheets run a cell that starts with one of these, some of them even after spaces."""

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""A terminal would obey these, and click would remove some of them."""


def csv_text(rows: Iterable[Iterable[object]]) -> str:
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
