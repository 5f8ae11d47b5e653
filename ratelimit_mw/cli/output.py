"""How commands speak: results on stdout, messages on stderr. Nothing that a file holds acts on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from operator import gt
from pathlib import Path
from typing import Any, Literal

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "Failure",
    "Misuse",
    "counted",
    "examples",
    "note",
    "print_json",
    "print_table",
    "print_text",
    "settings_file",
    "shown",
]

Cell = str | list[str]

_WIDTH_OF_A_FILE = 120
_GAP = 2

settings_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


class Failure(click.ClickException):
    """Ends a command with a message, as something wrong was found: exit code 1."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(" ".join(message.splitlines()), 2000))


class Misuse(Failure):
    """The command cannot run as it was asked to: exit code 2."""

    exit_code = 2


def shown(text: str, longest: int = 200) -> str:
    r"""The text as a terminal may have it: on one line, no control or direction characters, of bounded length.

    >>> shown("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    safe = text if text.isprintable() else "".join(map(_printable, text[: longest + 1]))
    return safe if len(safe) <= longest else safe[: longest - 1] + "…"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def examples(*lines: str) -> str:
    """The end of a command's help. The mark keeps click from wrapping the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: Any) -> None:
    """ASCII only: what is not printable is escaped."""
    click.echo(json.dumps(value, indent=2))


def note(message: str) -> None:
    """A message for the person, on stderr."""
    click.echo(shown(message, 1000), err=True)


def print_text(line: str, style: str = "") -> None:
    _console().print(Text(shown(line, 1000), style), soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], numbers: Iterable[str] = ()
) -> None:
    """Cells are a line or a list of lines. ``numbers`` are the columns set to the right."""
    console = _console()
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = _widths([[Text(name), *cells] for name, *cells in zip(columns, *texts, strict=True)], console.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column in numbers else "left"
        table.add_column(Text(column), justify=justify, width=width, overflow="fold")
    for cells in texts:
        table.add_row(*cells)
    print_text(title, "bold")  # rich would fold a title to the width of its table
    console.print(table)
    click.echo()


def _widths(columns: Sequence[Sequence[Text]], room: int) -> list[int]:
    """As wide as the cells are, or so narrow that all fit; words are broken only when nothing else helps."""
    lines = [[line for cell in column for line in cell.plain.split("\n")] for column in columns]
    widths = [max(map(cell_len, column)) for column in lines]
    longest_words = [max(cell_len(word) for line in column for word in line.split(" ")) for column in lines]
    for floors in (longest_words, [1] * len(widths)):
        while sum(widths) + _GAP * len(widths) > room and any(map(gt, widths, floors)):
            i = max(range(len(widths)), key=lambda i: widths[i] if widths[i] > floors[i] else 0)
            widths[i] -= 1
    return widths


def _text(cell: Cell) -> Text:
    return Text("\n".join(map(shown, [cell] if isinstance(cell, str) else cell)))


def _console() -> Console:
    """Markup, emoji codes and highlighting are off: what is printed is meant as it stands."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    return Console(width=width, markup=False, emoji=False, highlight=False)
