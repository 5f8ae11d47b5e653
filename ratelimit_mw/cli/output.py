"""Output of the commands: results on stdout, messages on stderr. Text from a file never controls the terminal."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import IO, Any, Final, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from ..keys.features import INVALID
from ..operations import Answer, Cell, Table

AnyCommand = TypeVar("AnyCommand", bound=click.Command)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_QUOTED: Final = re.compile(r"[^\w-]", re.ASCII)
"""A character for which a key of TOML needs quotes."""
_UNBOUNDED: Final = 10_000
"""The width of a file, in which no line is folded."""
_MOST_LINES: Final = 5
"""The lines that one line of a cell may become."""
_GAP: Final = 2
"""The spaces between two columns."""

json_flag = click.option("--json", is_flag=True, expose_value=False, help="Print JSON, even for errors.")
"""The option ``--json`` of a command that returns an ``Answer``. The group of all commands reads it."""


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print the result of a command on stdout, and its notes on stderr."""
    if as_json:
        print_json(answer.json)
    for part in () if as_json else answer.shown:
        if isinstance(part, Table):
            print_table(part)
        else:
            print_text(*([part] if isinstance(part, str) else part))
    note(*answer.notes)


class Failure(click.ClickException):
    """Ends a command with a message and exit code 1: the command found something wrong. Each note is a line."""

    def __init__(self, message: str, *notes: str) -> None:
        super().__init__("\n".join([printable(" ".join(message.splitlines()), 2000), *notes]))


def printable(text: str, longest: int = 200) -> str:
    """Return the text on one line, without control or direction characters, and of limited length."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


def count_text(number: int, noun: str) -> str:
    """Return "1 request" or "2,000 requests"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def command(
    *examples: str,
    cls: type[AnyCommand] = click.Command,  # type: ignore[assignment]
    name: str | None = None,
) -> Callable[[Callable[..., Answer | None]], AnyCommand]:
    """Make a function a command, and show the examples at the end of its help text.

    The function returns an ``Answer``, and has ``json_flag``; or it prints its results while it works.
    """
    return click.command(name, cls=cls, epilog=examples_of(examples))


def examples_of(lines: Iterable[str]) -> str:
    """Return the end of a help text. ``\\b`` keeps click from wrapping the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: Any) -> None:
    """Print ASCII only. JSON escapes everything else. Values of features may be no JSON."""
    click.echo(json.dumps(value, indent=2, default=lambda value: "(invalid)" if value is INVALID else str(value)))


def toml(value: Any) -> str:
    """Return a value of the settings as TOML.

    >>> toml({"path": ["/a"], "header:x-key": "no"})
    '{ path = ["/a"], "header:x-key" = "no" }'
    """
    if isinstance(value, dict):
        pairs = (f"{toml(name) if _QUOTED.search(name) else name} = {toml(item)}" for name, item in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def columns_of(stream: IO[str]) -> int:
    """Return the width of the terminal that a stream writes to. A line in a file is not folded."""
    return get_terminal_size().columns if stream.isatty() else _UNBOUNDED


def folded(text: str, stream: IO[str]) -> str:
    """Return a text in lines that fit on the terminal of a stream, with whole words."""
    fold = partial(wrap, width=columns_of(stream), break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if line.isspace() else "\n".join(fold(line)) for line in text.splitlines())


def note(*messages: str) -> None:
    """Print messages on stderr, each of them once."""
    for message in dict.fromkeys(messages):
        click.echo(folded(printable(message, 1000), sys.stderr), err=True)


def print_text(line: str, style: str = "") -> None:
    _console().print(Text(folded(printable(line, 1000), sys.stdout), style), soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table with a column for each key of its rows, whose _ is a space, or nothing when there are no rows.

    Numbers are aligned to the right. Where a terminal is too narrow, cells have several lines. Where it is too narrow
    for whole words, each row is a list of its cells.
    """
    if not table.rows:
        return
    print_text(table.title, "bold")
    rows = [{name.replace("_", " "): _cell_text(cell) for name, cell in row.items()} for row in table.rows]
    widths = _fitting({name: [row[name] for row in rows] for name in rows[0]}, columns_of(sys.stdout))
    if widths is None:
        _print_records(rows)
        return
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, cell, width in zip(rows[0], table.rows[0].values(), widths, strict=True):
        grid.add_column(name, justify="right" if isinstance(cell, int | float) else "left", width=width)
    for row in rows:
        grid.add_row(*row.values())
    _console().print(grid)
    click.echo()


def _print_records(rows: Sequence[Mapping[str, str]]) -> None:
    for row in rows:
        grid = Grid.grid(padding=(0, _GAP, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in row.items():
            grid.add_row(name, text)
        _console().print(grid)
        click.echo()


def _fitting(columns: Mapping[str, Sequence[str]], most: int) -> list[int] | None:
    """Return the width of each column of a table that is at most so wide; None when a list is easier to read.

    That is when some word would be cut, or some cell would have many lines.
    """
    texts = [[name, *cells] for name, cells in columns.items()]
    widths = [max(cell_len(line) for text in each for line in text.splitlines() or [""]) for each in texts]
    least = [max(cell_len(word) for text in each for word in text.split() or [""]) for each in texts]
    least = [max(word, -(-width // _MOST_LINES)) for word, width in zip(least, widths, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > most:
        wide = [column for column, width in enumerate(widths) if width > least[column]]
        if not wide:
            return None
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, int | float):
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:.1%}"
    return "\n".join(map(printable, [cell] if isinstance(cell, str) else cell))


def _console() -> Console:
    """Return a console for stdout that prints text unchanged, without markup, emoji codes or highlighting."""
    return Console(width=columns_of(sys.stdout), markup=False, emoji=False, highlight=False)


@contextmanager
def progress(action: str, total: int | None, *columns: ProgressColumn, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a bar when stderr is a terminal, and yield the function that updates it."""
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    console = Console(stderr=True)
    with Progress(TextColumn(action), BarColumn(), *columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task("", total=total, **fields))
