"""Output of the commands: results on stdout, messages on stderr. Text from a file never controls the terminal."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import IO, Any, Final, TypeVar

import click
from rich import box
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from ..keys.features import INVALID
from ..operations import Answer, Cell, Table

AnyCommand = TypeVar("AnyCommand", bound=click.Command)


class _File(click.Path):
    """The path of a file. A URL, which may have a password, is an error that does not show it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            hint = "For a traffic log, run: ratelimit-mw traffic URL"
            self.fail(f"expected a file; got a URL. {hint}", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(exists=True, dir_okay=False, path_type=Path)
_QUOTED: Final = re.compile(r"[^\w-]", re.ASCII)
"""A character for which a key of TOML needs quotes."""
_UNBOUNDED: Final = 10_000
"""The width of a file, in which no line is folded."""
_NARROWEST: Final = 40
"""The least width that has room for each column of any table. A narrower terminal folds the lines."""

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
    return json.dumps(value)


def columns_of(stream: IO[str]) -> int:
    """Return the width of the terminal that a stream writes to. A line in a file is not folded."""
    return max(_NARROWEST, get_terminal_size().columns) if stream.isatty() else _UNBOUNDED


def note(*messages: str) -> None:
    """Print messages on stderr, each of them once."""
    for message in dict.fromkeys(messages):
        _console(sys.stderr).print(Text(printable(message, 1000)))


def print_text(line: str, style: str = "") -> None:
    _console(sys.stdout).print(Text(printable(line, 1000), style))


def print_table(table: Table) -> None:
    """Print a table with a column for each key of its rows, whose _ is a space, or nothing when there are no rows.

    Numbers are aligned to the right. Where a terminal is too narrow, cells have several lines.
    """
    if not table.rows:
        return
    print_text(table.title, "bold")
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, cell in table.rows[0].items():
        side: JustifyMethod = "right" if isinstance(cell, int | float) else "left"
        grid.add_column(name.replace("_", " "), justify=side, overflow="fold")
    for row in table.rows:
        grid.add_row(*map(_cell_text, row.values()))
    _console(sys.stdout).print(grid)
    click.echo()


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, int | float):
        return f"{cell:,}" if isinstance(cell, int) else f"{cell:.1%}"
    return "\n".join(map(printable, [cell] if isinstance(cell, str) else cell))


def _console(stream: IO[str]) -> Console:
    """Return a console that prints text unchanged, without markup, emoji codes or highlighting."""
    return Console(file=stream, width=columns_of(stream), markup=False, emoji=False, highlight=False)


@contextmanager
def progress(action: str, total: int | None, *columns: ProgressColumn, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a bar when stderr is a terminal, and yield the function that updates it."""
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    console = Console(stderr=True)
    with Progress(TextColumn(action), BarColumn(), *columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task("", total=total, **fields))
