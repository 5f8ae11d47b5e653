"""What the demo shows: the settings before, who was served and who rejected after. Counts nothing itself."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ...rules import describe as described
from ...rules.ruleset import RuleSet
from ...settings import load_settings
from ..output import counted, shown
from .player import Played, Sample
from .tally import Tally, by_client, by_kind, by_policy, served_again

__all__ = ["Report"]

_WIDTH_OF_A_FILE: Final = 100
_MOST_CLIENTS: Final = 6
_BARS: Final = " ▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = " .:-=+*#@"
_STYLES: Final = {"served": "green", "rejected": "red", "rejected over time": "red"}


class Report:
    """Prints on stdout. ``settings`` is the file that the server runs with."""

    def __init__(self, settings: Path) -> None:
        width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
        self._console = Console(width=width, markup=False, emoji=False, highlight=False)
        self._settings = settings
        self._rules = RuleSet(load_settings(settings).rules).rules
        self._shown_path = _short(settings)

    def before(self) -> None:
        """The settings, as they stand in their file."""
        self._heading(f"The settings, {self._shown_path}")
        toml = self._settings.read_text().strip()
        coloured = Syntax("", "toml", theme="ansi_dark", background_color="default").highlight(toml)
        self._console.print(coloured)

    def after(self, played: Played, kinds: Sequence[str]) -> None:
        clients = by_client(played)
        self._summary(played)
        self._kinds(by_kind(played), kinds)
        self._limits(by_policy(played))
        if clients:
            self._clients(clients)
            self._console.print()
            self._recovery(served_again(played), kinds)
        if played.sample is not None:
            self._sample(played.sample)
        self._next()

    def _summary(self, played: Played) -> None:
        requests = len(played.outcomes)
        clients = len({outcome.request.client for outcome in played.outcomes})
        rejected = sum(outcome.is_rejected for outcome in played.outcomes)
        self._heading(f"{counted(requests, 'request')} from {counted(clients, 'client')} in {played.seconds:.1f} s")
        self._print(f"{requests - rejected:,} served, {rejected:,} rejected")
        if played.unanswered:
            self._print(f"{counted(played.unanswered, 'request')} got no answer", "bold red")
        if played.left_out:
            self._print(f"{counted(played.left_out, 'request')} left out: time was up", "bold red")

    def _kinds(self, tallies: dict[str, Tally], kinds: Iterable[str]) -> None:
        rows = [
            (kind, _number(len(t.clients)), _number(t.requests), _number(t.served), _number(t.rejected), self._bars(t))
            for kind in kinds
            if (t := tallies.get(kind)) is not None
        ]
        columns = ("kind of client", "clients", "requests", "served", "rejected", "rejected over time")
        self._table("Who asked", columns, rows, columns[1:5])

    def _limits(self, tallies: dict[str, Tally]) -> None:
        rows = [
            (
                *((rule.name, described.key_of(rule)) if number == 0 else ("", "")),
                str(limit.quota),
                *(_number(n) for n in _of_limit(tallies.get(limit.policy, Tally()))),
            )
            for rule in self._rules
            for number, limit in enumerate(rule.limits)
        ]
        columns = ("rule", "counted by", "limit", "looked at", "rejected", "of clients")
        self._table("Which rule rejected", columns, rows, columns[3:])

    def _clients(self, clients: dict[str, Tally]) -> None:
        rows = [
            (client, t.kind, _number(t.requests), _number(t.served), _number(t.rejected), self._rejecting(t))
            for client, t in list(clients.items())[:_MOST_CLIENTS]
        ]
        columns = ("client", "kind", "requests", "served", "rejected", "by")
        self._table("Rejected most", columns, rows, columns[2:5])

    def _rejecting(self, tally: Tally) -> str:
        names = [rule.name for rule in self._rules if any(limit.policy in tally.policies for limit in rule.limits)]
        return ", ".join(names)

    def _recovery(self, again: dict[str, tuple[int, int]], kinds: Iterable[str]) -> None:
        told = [(kind, *again[kind]) for kind in kinds if kind in again]
        parts = [f"{kind} {back:,} of {rejected:,}" for kind, back, rejected in told]
        self._console.print(Text(f"Served again after a rejection: {', '.join(parts)}"))

    def _sample(self, sample: Sample) -> None:
        self._heading("A rejection, as it was sent")
        self._print(f"{sample.request.method} {sample.request.target} from {sample.request.client}")
        self._console.print()
        for line in sample.response.splitlines():
            self._print(line, "cyan")
        if sample.then:
            self._console.print()
            self._print(f"Asked again after {sample.wait} s, as Retry-After says: {sample.then}", "green")

    def _next(self) -> None:
        path, program = shlex.quote(self._shown_path), shlex.quote(_program())
        self._heading("Where to go next")
        for line in (
            f"{program} check {path}",
            f"{program} explain {path} POST /login",
            f"{program} replay {path} /var/log/nginx/access.log",
            f"{program} demo --log /var/log/nginx/access.log",
        ):
            self._print(f"  {line}", "bold")
        self._print(f"The application: {_short(self._settings.with_name('app.py'))}")
        self._print("More of them, for ASGI, WSGI, Starlette, FastAPI, Flask and Django: examples/")

    def _table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str]) -> None:
        self._heading(title)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
        for column in columns:
            right = column in numbers
            table.add_column(
                Text(column),
                justify="right" if right else "left",
                no_wrap=right,
                style=_STYLES.get(column, ""),
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(shown(cell)) for cell in row))
        self._console.print(table)

    def _bars(self, tally: Tally) -> str:
        """The curve in a line: a bar for each slice, the highest for the most."""
        bars = _BARS if self._console.encoding.startswith("utf") else _ASCII_BARS
        highest = max(tally.curve)
        return "".join(bars[-(-n * (len(bars) - 1) // highest)] if n else bars[0] for n in tally.curve).rstrip()

    def _heading(self, text: str) -> None:
        self._console.print()
        self._print(text, "bold")

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(shown(line, 1000), style), soft_wrap=True)


def _of_limit(tally: Tally) -> tuple[int, int, int]:
    return tally.requests, tally.rejected, len(tally.rejected_clients)


def _number(number: int) -> str:
    return f"{number:,}"


def _program() -> str:
    """This command as a person here can type it, also where it stands in an environment that is not active."""
    name = "ratelimit-mw"
    return name if shutil.which(name) else _short(Path(sys.executable).with_name(name))


def _short(path: Path) -> str:
    """The path as a person here would write it."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
