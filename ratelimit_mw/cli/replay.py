"""``ratelimit-mw replay``: an access log against the rules, and who would have been rejected."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..rules.describe import replacing
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from .log_file import DamagedLogError, LogReader, in_order
from .output import (
    Cell,
    Failure,
    count_text,
    help_examples,
    note,
    print_json,
    print_table,
    print_text,
    printable,
    settings_file,
)
from .simulation import Report, RuleReport, Simulation, log_tells

__all__ = ["replay"]


def _png(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """A place for the picture, looked at before the work and not after it."""
    if path is not None and path.suffix.lower() != ".png":
        raise click.BadParameter(f"the picture is a PNG; expected a name ending in .png, got {str(path)!r}")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"there is no folder {str(path.parent)!r} to write in")
    return path


@click.command(
    epilog=help_examples(
        "ratelimit-mw replay ratelimit.toml access.log",
        "ratelimit-mw replay ratelimit.toml access.log.2.gz --plot rejections.png --top 20",
        "zcat access.log.*.gz | ratelimit-mw replay ratelimit.toml - --json",
    )
)
@settings_file
@click.argument("access_log", type=click.File("rb"))
@click.option("--plot", metavar="PNG", type=click.Path(dir_okay=False, writable=True, path_type=Path), callback=_png,
              help="Draw requests and rejections over time, and the clients rejected most.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, help="How many clients to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def replay(file: Path, access_log: IO[bytes], plot: Path | None, top: int, as_json: bool) -> None:
    """Run the rules in FILE over ACCESS_LOG and show which rules would have rejected which clients.

    The log is Apache's or nginx's, common or combined format, plain or gzip, oldest line first; "-" is stdin. Its
    own times count. Nothing but this log is needed, and no store is touched.

    Features come from the line: ip, method, path, user, header:user-agent, header:referer, query:NAME. Behind a
    proxy the log has to hold the client's address and not the proxy's.
    """
    if plot is not None:
        from .plot import draw  # needs matplotlib; without it nothing is begun
    settings = load_settings(file)
    _say_what_differs(settings)
    simulation = Simulation(settings)
    with _progress(access_log) as progress:
        reader = LogReader(access_log, progress)
        try:
            report = simulation.replay(in_order(reader))
        except DamagedLogError as error:
            raise Failure(f"{access_log.name}: cannot be read to its end: {error}") from None
    _say_what_was_unreadable(reader, report)
    if not report.times:
        raise Failure(f"{access_log.name}: there is no request in it")
    if as_json:
        print_json(_as_json(report, reader, top))
    else:
        _print(report, top)
    if plot is not None:
        draw(report, plot, top)
        note(f"drawn: {plot}")


@contextmanager
def _progress(file: IO[bytes]) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, when that is a terminal. How far there is to go is known of a file, not of a pipe."""
    columns = (TextColumn("replaying"), BarColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=_size(file), lines=0)
        yield lambda lines, read: progress.update(task, completed=read, lines=lines)


def _size(file: IO[bytes]) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:  # a stream that is no file
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _say_what_differs(settings: Settings) -> None:
    """What the application has and a log has not."""
    if not settings.store.startswith("memory:"):
        note(f"counted in memory, not in {settings.store.partition(':')[0]}")
    for line in replacing(settings.overrides):
        note(line)
    for name, rules in _untold(settings).items():
        note(f"the log does not tell {name}: unknown to {', '.join(rules)} in every request")


def _untold(settings: Settings) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule in RuleSet(settings.rules).rules:
        for name in (*rule.source.needs, *(["host"] if rule.source.matches.hosts else [])):
            if not log_tells(name) and rule.name not in found.setdefault(name, []):
                found[name].append(rule.name)
    return {name: rules for name, rules in found.items() if rules}


def _say_what_was_unreadable(reader: LogReader, report: Report) -> None:
    if reader.invalid:
        note(f"{reader.invalid:,} of {reader.lines:,} lines could not be read, the first of them:")
    for line in reader.examples:
        note(f"  line {line.number}: {line.why}: {printable(line.text, 100)}")
    if report.out_of_order:
        note(f"{report.out_of_order:,} requests came long after later ones; a log is read oldest line first")


def _as_json(report: Report, reader: LogReader, top: int) -> dict[str, Any]:
    return {
        "requests": len(report.times),
        "rejected": len(report.rejected_times),
        "clients": len(report.requests),
        "clients_rejected": len(report.rejected),
        "first": _moment(report.first).isoformat(),
        "last": _moment(report.last).isoformat(),
        "lines": reader.lines,
        "invalid": reader.invalid,
        "unreadable_examples": [line._asdict() for line in reader.examples],
        "out_of_order": report.out_of_order,
        "rules": [_rule_as_json(rule) for rule in report.rules.values()],
        "clients_rejected_most": [
            {
                "client": client,
                "requests": report.requests[client],
                "rejected": report.rejected[client],
                "rules": report.rejecting_rules(client),
            }
            for client in report.most_rejected(top)
        ],
    }


def _rule_as_json(rule: RuleReport) -> dict[str, Any]:
    return {
        "name": rule.name,
        "mode": "shadow" if rule.shadow else "enforce",
        "looked_at": rule.looked,
        "rejected": rule.rejected,
        "delayed": rule.delayed,
        "clients_rejected": len(rule.clients),
        "limits": [{"limit": limit, "rejected": rejected} for limit, rejected in rule.rejected_by_limit.items()],
    }


def _print(report: Report, top: int) -> None:
    total, rejected = len(report.times), len(report.rejected_times)
    print_text(f"{_moment(report.first):%Y-%m-%d %H:%M:%S} to {_moment(report.last):%Y-%m-%d %H:%M:%S} UTC")
    print_text(f"{count_text(total, 'request')} of {count_text(len(report.requests), 'client')}")
    print_text(f"{rejected:,} rejected ({_share(rejected, total)}) of {count_text(len(report.rejected), 'client')}")
    click.echo()
    enforced = [rule for rule in report.rules.values() if not rule.shadow]
    if enforced:
        _print_rules("Rules", "rejected", enforced)
    shadows = [rule for rule in report.rules.values() if rule.shadow]
    if shadows:
        _print_rules("Shadow rules, which reject nobody", "would reject", shadows)
    clients = report.most_rejected(top)
    if clients:
        title = "Clients rejected most" if len(report.rejected) <= top else f"The {top} clients rejected most"
        columns = ("client", "requests", "rejected", "share", "by")
        print_table(title, columns, [_client_row(report, client) for client in clients], columns[1:4])


def _print_rules(title: str, rejected: str, rules: Sequence[RuleReport]) -> None:
    columns = ["rule", "limit", "looked at", rejected, "share", "clients"]
    if any(rule.delayed for rule in rules):
        columns.append("delayed")
    print_table(title, columns, [_rule_row(rule)[: len(columns)] for rule in rules], columns[2:])


def _rule_row(rule: RuleReport) -> list[Cell]:
    """One limit on a line, with its own rejections beside it when there are several."""
    by_limit = rule.rejected_by_limit
    limits = [f"{limit}: {rejected:,}" if len(by_limit) > 1 else limit for limit, rejected in by_limit.items()]
    numbers = [f"{rule.looked:,}", f"{rule.rejected:,}", _share(rule.rejected, rule.looked), f"{len(rule.clients):,}"]
    return [rule.name, limits, *numbers, f"{rule.delayed:,}"]


def _client_row(report: Report, client: str) -> list[str]:
    requests, rejected = report.requests[client], report.rejected[client]
    return [
        client,
        f"{requests:,}",
        f"{rejected:,}",
        _share(rejected, requests),
        ", ".join(report.rejecting_rules(client)),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
