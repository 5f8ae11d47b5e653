"""The output of the demo: the settings and the application before, the table after."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.syntax import Syntax

from ...rules.plan import CompiledRule
from ...rules.ruleset import RuleSet
from ...settings import load_settings
from ..output import count_text, print_table, print_text, terminal
from .player import KindCount, Playback, RejectionSample

_FILES: Final = {"settings": Path(__file__).with_name("demo.toml"), "application": Path(__file__).with_name("app.py")}
_COLUMNS: Final = ("kind of client", "clients", "requests", "allowed", "rejected", "rejected by")


def show_files() -> None:
    """Print the settings and the application as they are in their files."""
    for title, path in _FILES.items():
        print_text(f"The {title}: {_short(path)}", "bold")
        code = Syntax("", path.suffix.replace("py", "python")[1:], theme="ansi_dark", background_color="default")
        terminal().print(code.highlight(path.read_text("utf-8").strip()))
        click.echo()


def show_playback(playback: Playback, kinds: Sequence[str]) -> None:
    counts = [(kind, playback.kinds[kind]) for kind in kinds if kind in playback.kinds]
    requests = sum(count.requests for _, count in counts)
    clients = count_text(sum(len(count.clients) for _, count in counts), "client")
    print_text(f"{count_text(requests, 'request')} from {clients} in {playback.seconds:.1f} s", "bold")
    print_text(f"{requests - playback.rejected:,} allowed, {playback.rejected:,} rejected")
    if playback.failed:
        print_text(f"{count_text(playback.failed, 'request')} without a response", "bold red")
    click.echo()
    rules = RuleSet(load_settings(_FILES["settings"]).rules).rules
    print_table("By kind of client", _COLUMNS, [_row(kind, count, rules) for kind, count in counts], _COLUMNS[1:5])
    if playback.sample is not None:
        _show_sample(playback.sample)
    _show_next_commands()


def _row(kind: str, count: KindCount, rules: Sequence[CompiledRule]) -> tuple[str, ...]:
    numbers = (len(count.clients), count.requests, count.requests - count.rejected, count.rejected)
    names = [rule.name for rule in rules if any(limit.policy in count.policies for limit in rule.limits)]
    return (kind, *(f"{number:,}" for number in numbers), ", ".join(names))


def _show_sample(sample: RejectionSample) -> None:
    print_text("A rejection, as it was sent", "bold")
    print_text(f"{sample.request.method} {sample.request.target} from {sample.request.client}")
    click.echo()
    for line in sample.response.splitlines():
        print_text(line, "cyan")
    if sample.retried:
        click.echo()
        print_text(f"The same request after Retry-After ({sample.retry_after} s): {sample.retried}", "green")
    click.echo()


def _show_next_commands() -> None:
    settings = shlex.quote(_short(_FILES["settings"]))
    # The program as you can type it, also when its virtual environment is not active.
    program = "ratelimit-mw"
    program = program if shutil.which(program) else shlex.quote(_short(Path(sys.executable).with_name(program)))
    print_text("Try next", "bold")
    for arguments in (
        f"check {settings}",
        f"explain {settings} POST /login --feature ip=192.0.2.7",
        f"replay {settings} /var/log/nginx/access.log",
        "demo --log /var/log/nginx/access.log",
    ):
        print_text(f"  {program} {arguments}")
    print_text("Applications for ASGI, WSGI, Starlette, FastAPI, Flask and Django are in examples/.")


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
