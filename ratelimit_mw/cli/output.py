"""How commands speak: results on stdout, messages on stderr. Nothing that a file holds acts on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
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

_WIDTH_OF_A_FILE = 120

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
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut if cut.isprintable() else "".join(map(_printable, cut))


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
    _console().print(Text(shown(line, 1000), style))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> None:
    """Cells are plain text; lines within a cell are kept. ``numbers`` are the columns set to the right."""
    print_text(title, "bold")  # rich would fold a title to the width of its table
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column in numbers
        table.add_column(Text(column), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(map(shown, cell.split("\n")))) for cell in row))
    _console().print(table)


def _console() -> Console:
    """Markup, emoji codes and highlighting are off: what is printed is meant as it stands."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    return Console(width=width, markup=False, emoji=False, highlight=False)
