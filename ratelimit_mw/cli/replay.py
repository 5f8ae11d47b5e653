"""``ratelimit-mw replay``: apply the rules to an access log, and show which clients they reject."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
from rich.progress import TextColumn, TimeRemainingColumn

from ..rules.describe import describe_overrides
from ..rules.ruleset import RuleSet
from ..settings import Settings, load_settings
from .log_file import DamagedLogError, LogReader, in_order
from .output import (
    Cell,
    Failure,
    count_text,
    help_examples,
    json_option,
    note,
    print_json,
    print_table,
    print_text,
    printable,
    progress_bar,
    settings_file,
)
from .simulation import ReplayReport, RuleReport, Simulation, log_has


def _png(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture before the work."""
    if path is not None and path.suffix.lower() != ".png":
        raise click.BadParameter(f"expected a file name that ends in .png; got {str(path)!r}")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"cannot write to the folder {str(path.parent)!r}")
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
              help="Draw requests and rejections over time, and the clients with most rejections.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, help="Number of clients to show.")
@json_option
def replay(file: Path, access_log: IO[bytes], plot: Path | None, top: int, as_json: bool) -> None:
    """Apply the rules in FILE to ACCESS_LOG, and show which clients they would have rejected.

    ACCESS_LOG is a log of Apache or nginx, in the common or combined format, plain or gzip, oldest line first. "-"
    reads stdin. Each request is decided at the time of its line, and no store is used.

    The features of a request come from its line: ip, method, path, user, header:user-agent, header:referer and
    query:NAME. Behind a proxy, log the IP address of the client and not of the proxy.
    """
    if plot is not None:
        from .plot import draw  # raises MissingExtraError without matplotlib
    settings = load_settings(file)
    for line in _differences(settings):
        note(line)
    columns = (TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    with progress_bar("replaying", _size(access_log), *columns, lines=0) as update:
        reader = LogReader(access_log, lambda lines, position: update(lines=lines, completed=position))
        try:
            report = Simulation(settings).replay(in_order(reader))
        except DamagedLogError as error:
            raise Failure(f"{access_log.name}: cannot read the compressed file to its end: {error}") from None
    for line in _invalid_lines(reader, report):
        note(line)
    if not report.times:
        raise Failure(f"{access_log.name}: contains no request")
    if as_json:
        print_json(_as_json(report, reader, top))
    else:
        _print(report, top)
    if plot is not None:
        draw(report, plot, top)
        note(f"picture written to {plot}")


def _size(file: IO[bytes]) -> int | None:
    """Return the size of a file, or None for a pipe or another stream."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _differences(settings: Settings) -> Iterator[str]:
    """Yield how the replay differs from the application."""
    if not settings.store.startswith("memory:"):
        yield f"counting in memory, not in {settings.store.partition(':')[0]}"
    yield from describe_overrides(settings.overrides)
    missing: dict[str, list[str]] = {}
    for rule in RuleSet(settings.rules).rules:
        for name in (*rule.source.needs, *(["host"] if rule.source.matches.hosts else [])):
            if not log_has(name) and rule.name not in missing.setdefault(name, []):
                missing[name].append(rule.name)
    for name, rules in missing.items():
        yield f"the log does not contain {name}: missing in every request for {', '.join(rules)}"


def _invalid_lines(reader: LogReader, report: ReplayReport) -> Iterator[str]:
    if reader.invalid:
        yield f"{reader.invalid:,} of {reader.lines:,} lines cannot be parsed. The first of them:"
    for line in reader.examples:
        yield f"  line {line.number}: {line.reason}: {printable(line.text, 100)}"
    if report.out_of_order:
        yield f"{report.out_of_order:,} requests are after much later ones. Give the oldest line first"


def _as_json(report: ReplayReport, reader: LogReader, top: int) -> dict[str, Any]:
    return {
        "requests": len(report.times),
        "rejected": len(report.rejected_times),
        "clients": len(report.requests),
        "clients_rejected": len(report.rejected),
        "first": _moment(report.first).isoformat(),
        "last": _moment(report.last).isoformat(),
        "lines": reader.lines,
        "invalid": reader.invalid,
        "invalid_examples": [line._asdict() for line in reader.examples],
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
        "matched": rule.matched,
        "rejected": rule.rejected,
        "delayed": rule.delayed,
        "clients_rejected": len(rule.clients),
        "limits": [{"limit": limit, "rejected": rejected} for limit, rejected in rule.rejected_by_limit.items()],
    }


def _print(report: ReplayReport, top: int) -> None:
    total, rejected = len(report.times), len(report.rejected_times)
    print_text(f"{_moment(report.first):%Y-%m-%d %H:%M:%S} to {_moment(report.last):%Y-%m-%d %H:%M:%S} UTC")
    print_text(f"{count_text(total, 'request')} from {count_text(len(report.requests), 'client')}")
    print_text(f"{rejected:,} rejected ({_share(rejected, total)}) from {count_text(len(report.rejected), 'client')}")
    click.echo()
    enforced = [rule for rule in report.rules.values() if not rule.shadow]
    if enforced:
        _print_rules("Rules", "rejected", enforced)
    shadows = [rule for rule in report.rules.values() if rule.shadow]
    if shadows:
        _print_rules("Shadow rules, which never reject", "would reject", shadows)
    clients = report.most_rejected(top)
    if clients:
        title = "Clients with most rejections" if len(report.rejected) <= top else f"{top} clients with most rejections"
        columns = ("client", "requests", "rejected", "share", "rejected by")
        print_table(title, columns, [_client_row(report, client) for client in clients], columns[1:4])


def _print_rules(title: str, rejected: str, rules: Sequence[RuleReport]) -> None:
    columns = ["rule", "limit", "matched", rejected, "share", "clients"]
    if any(rule.delayed for rule in rules):
        columns.append("delayed")
    print_table(title, columns, [_rule_row(rule)[: len(columns)] for rule in rules], columns[2:])


def _rule_row(rule: RuleReport) -> list[Cell]:
    """One limit per line, with its rejections when there are several limits."""
    by_limit = rule.rejected_by_limit
    limits = [f"{limit}: {rejected:,}" if len(by_limit) > 1 else limit for limit, rejected in by_limit.items()]
    numbers = [f"{rule.matched:,}", f"{rule.rejected:,}", _share(rule.rejected, rule.matched), f"{len(rule.clients):,}"]
    return [rule.name, limits, *numbers, f"{rule.delayed:,}"]


def _client_row(report: ReplayReport, client: str) -> list[str]:
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
