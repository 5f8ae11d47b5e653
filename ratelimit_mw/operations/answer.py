"""``Answer``: the result of an operation or a command, for a program and for a person."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Cell = str | Sequence[str] | int | float
"""A text, lines of text, a number, or a share between 0.0 and 1.0."""


class Table(NamedTuple):
    """A table with a column for each key of its rows. Without rows, it is not shown."""

    title: str
    rows: Sequence[Mapping[str, Cell]]


class Line(NamedTuple):
    """A line of text with a style of rich, such as "bold"."""

    text: str
    style: str = ""


class Answer(NamedTuple):
    """The result of an operation or a command, which prints nothing itself.

    Args:
        json: The value for programs: ``--json`` prints it, and the admin API returns it.
        shown: Tables and lines for a person, in this order. An empty text is an empty line.
        notes: Messages beside the result.
        found_wrong: Whether the exit code of the command is 1.
    """

    json: Any
    shown: Sequence[Table | Line | str] = ()
    notes: Sequence[str] = ()
    found_wrong: bool = False
