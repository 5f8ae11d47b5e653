"""``ratelimit-mw replay``: apply the rules to an access log, and show which clients they reject."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import click
from rich.progress import TextColumn, TimeRemainingColumn

from ..rules.describe import describe_overrides
from ..stores import redacted_url
from .access_log import LogReader, in_order
from .output import FILE, Cell, command, count_text, json_option, note, print_json, print_table, print_text, progress
from .simulation import Simulation, is_logged
from .source import Source

_MODES: Final = (("enforce", "Rules", "rejected"), ("shadow", "Shadow rules, which never reject", "would reject"))


def _check_png(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture before the work."""
    if path is not None and not (path.suffix.lower() == ".png" and os.access(path.absolute().parent, os.W_OK)):
        raise click.BadParameter(f"expected a file name that ends in .png, in a writable folder; got {str(path)!r}")
    return path


@command(
    "ratelimit-mw replay ratelimit.toml access.log",
    "ratelimit-mw replay ratelimit.toml access.log.2.gz --plot rejections.png --top 20",
    "zcat access.log.*.gz | ratelimit-mw replay ratelimit.toml - --json",
)
@click.argument("file", type=FILE)
@click.argument("access_log", type=click.File("rb"))
@click.option("--plot", metavar="PNG", callback=_check_png,
              type=click.Path(dir_okay=False, writable=True, path_type=Path),
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
    source = Source.from_file(file)
    for line in _differences(source):
        note(line)
    report = Simulation(source.settings)
    columns = (TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    with progress("replaying", _file_size(access_log), *columns, lines=0) as update:
        reader = LogReader(access_log, lambda lines, position: update(lines=lines, completed=position))
        report.replay(in_order(reader))
    reader.finish(bool(report.times))
    if report.out_of_order:
        note(f"{report.out_of_order:,} requests are after much later ones. Give the oldest line first")
    summary = _summary(report, reader, top)
    if as_json:
        print_json(summary)
    else:
        _print(report.period, summary)
    if plot is not None:
        draw(report, plot, top)
        note(f"picture written to {plot}")


def _file_size(file: IO[bytes]) -> int | None:
    """Return the size of a file, or None for a pipe or another stream."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _differences(source: Source) -> Iterator[str]:
    """Yield how the replay differs from the application."""
    settings = source.settings
    scheme = redacted_url(settings.store).partition(":")[0]
    if scheme != "memory":
        yield f"counting in memory, not in {scheme}"
    yield from describe_overrides(settings.overrides)
    if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(settings.rules) if rule.is_marked]:
        yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
    for name, rules in source.rules_by_feature().items():
        if not is_logged(name):
            yield f"the log does not contain {name}: missing in every request for {', '.join(rules)}"


def _summary(report: Simulation, reader: LogReader, top: int) -> dict[str, Any]:
    first, last = report.span
    return {
        "requests": len(report.times),
        "rejected": len(report.rejected_times),
        "clients": len(report.requests),
        "clients_rejected": len(report.rejected),
        "first": first.isoformat(),
        "last": last.isoformat(),
        "lines": reader.lines,
        "invalid": reader.invalid,
        "invalid_examples": reader.examples,
        "out_of_order": report.out_of_order,
        "rules": [rule.as_json() for rule in report.rules.values()],
        "clients_rejected_most": [report.client_as_json(client) for client in report.most_rejected(top)],
    }


def _print(period: str, summary: dict[str, Any]) -> None:
    total, rejected, clients = summary["requests"], summary["rejected"], summary["clients_rejected_most"]
    rejected_clients = count_text(summary["clients_rejected"], "client")
    print_text(period)
    print_text(f"{count_text(total, 'request')} from {count_text(summary['clients'], 'client')}")
    print_text(f"{rejected:,} rejected ({rejected / total:.1%}) from {rejected_clients}")
    click.echo()
    for mode, title, column in _MODES:
        rules = [rule for rule in summary["rules"] if rule["mode"] == mode]
        is_delayed = any(rule["delayed"] for rule in rules)
        print_table(title, [_rule_row(rule, column, is_delayed) for rule in rules])
    every = len(clients) == summary["clients_rejected"]
    title = "Clients with most rejections" if every else f"{len(clients)} clients with most rejections"
    rows = [{**row, "rules": ", ".join(row["rules"]), "share": row["rejected"] / row["requests"]} for row in clients]
    print_table(title, rows)


def _rule_row(rule: dict[str, Any], column: str, is_delayed: bool) -> dict[str, Cell]:
    """One limit per line, with its rejections when there are several limits."""
    limits = rule["limits"]
    return {
        "rule": rule["name"],
        "limit": [f"{each['limit']}: {each['rejected']:,}" if len(limits) > 1 else each["limit"] for each in limits],
        "matched": rule["matched"],
        column: rule["rejected"],
        "share": rule["rejected"] / max(rule["matched"], 1),
        "clients": rule["clients_rejected"],
        **({"delayed": rule["delayed"]} if is_delayed else {}),
    }
