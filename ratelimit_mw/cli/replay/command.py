"""``ratelimit-mw replay``: apply the rules to an access log, and show which clients they reject."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.progress import TaskProgressColumn, TextColumn, TimeRemainingColumn

from ...errors import ConfigError
from ...rules.describe import describe_overrides
from ...stores import redacted_url
from ..json_lines import LineParser, check_field
from ..log_files import LogFiles, logs_argument
from ..output import FILE, Cell, command, count_text, json_option, note, print_json, print_table, print_text, progress
from ..source import Source
from .report import ReplayReport
from .simulation import Simulation, is_logged

_MODES: Final = (("enforce", "Rules", "rejected"), ("shadow", "Shadow rules, which never reject", "would reject"))


def _check_picture(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Check the path of the picture before the work."""
    is_picture = path is None or path.suffix.lower() in (".png", ".svg")
    if path is not None and not (is_picture and os.access(path.absolute().parent, os.W_OK)):
        expected = "a file name that ends in .png or .svg, in a writable folder"
        raise click.BadParameter(f"expected {expected}; got {str(path)!r}")
    return path


def _check_fields(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    try:
        return dict(map(check_field, texts))
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


field_option = click.option("--field", "fields", metavar="NAME=FIELD", multiple=True, callback=_check_fields,
              help="The field of JSON lines for a part of the request, or for a feature: time=..., ip=...,"
                   " user=account.id, plan=account.plan. Use it several times for several fields.")  # fmt: skip


@command(
    "ratelimit-mw replay ratelimit.toml access.log",
    "ratelimit-mw replay ratelimit.toml access.log access.log.2.gz --plot rejections.svg --top 20",
    "ratelimit-mw replay ratelimit.toml caddy.log --field user=request.headers.X-User",
    "zcat access.log.*.gz | ratelimit-mw replay ratelimit.toml - --json",
)
@click.argument("file", type=FILE)
@logs_argument()
@field_option
@click.option("--plot", metavar="PICTURE", callback=_check_picture,
              type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Draw demand, allowed and rejected requests over time, and the clients with most rejections, as .png"
                   " or .svg.")  # fmt: skip
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True,
              help="The colours of the picture.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, help="Number of clients to show.")
@json_option
def replay(
    file: Path,
    access_logs: tuple[str, ...],
    fields: dict[str, str],
    plot: Path | None,
    theme: str,
    top: int,
    as_json: bool,
) -> None:
    """Apply the rules in FILE to access logs, and show which clients they would have rejected.

    ACCESS_LOG is a log of Apache or nginx in the common or combined format, or JSON lines of Caddy, Traefik, Envoy,
    nginx and others, plain or gzip. Several logs are read as one, by time, in any order. "-" reads stdin. Each request
    is decided at the time of its line, and no store is used.

    The features of a request come from its line: ip, method, path, user, header:user-agent, header:referer and
    query:NAME. JSON lines may have the host, other headers, and the features of --field. Behind a proxy, log the IP
    address of the client and not of the proxy.
    """
    if plot is not None:
        from .plot import THEMES, draw  # raises MissingExtraError without matplotlib
    source = Source.from_file(file)
    for line in _differences(source):
        note(line)
    report = ReplayReport(Simulation(source.settings))
    parser = LineParser(fields, source.rules.needs)
    logs = read_logs(access_logs, parser, report)
    for line in _missing(source, parser):
        note(line)
    if report.out_of_order:
        note(f"{report.out_of_order:,} requests are after much later ones. Give each log as a file of its own")
    if not report.clients.is_complete:
        most = report.clients.most
        note(f"the report keeps the {most:,} clients with most rejections. Counts of other clients may be too low")
    summary = {
        **report.as_json(top),
        "lines": logs.lines,
        "invalid": logs.invalid,
        "invalid_examples": logs.examples,
    }
    if as_json:
        print_json(summary)
    else:
        _print(report.period, summary)
    if plot is not None:
        draw(report, plot, top, THEMES[theme])
        note(f"picture written to {plot}")


def read_logs(paths: tuple[str, ...], parser: LineParser, *reports: ReplayReport) -> LogFiles:
    """Replay access logs with a bar, and print what could not be read."""
    columns = (TaskProgressColumn(), TextColumn("{task.fields[lines]:,} lines"), TimeRemainingColumn())
    size = LogFiles(paths, parser).size or None
    with progress("replaying", size, *columns, lines=0) as update:
        logs = LogFiles(paths, parser, lambda lines, position: update(lines=lines, completed=position))
        for entry in logs:
            for report in reports:
                report.add(entry)
    logs.finish(reports[0].requests)
    return logs


def _differences(source: Source) -> Iterator[str]:
    """Yield how the replay differs from the application."""
    settings = source.settings
    scheme = redacted_url(settings.store).partition(":")[0]
    if scheme != "memory":
        yield f"counting in memory, not in {scheme}"
    yield from describe_overrides(settings.overrides)
    if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(settings.rules) if rule.is_marked]:
        yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
    if slots := [rule.name for rule in source.rules.rules if any(limit.quota.concurrent for limit in rule.limits)]:
        yield f"requests end at once in the replay, so concurrency limits reject none for {', '.join(slots)}"


def _missing(source: Source, parser: LineParser) -> Iterator[str]:
    """Yield the features that no line of the logs had, and that a common log cannot have."""
    for name, rules in source.rules_by_feature().items():
        if not is_logged(name) and name not in parser.found:
            yield f"the log does not contain {name}: missing in every request for {', '.join(rules)}"


def _print(period: str, summary: dict[str, Any]) -> None:
    total, rejected, clients = summary["requests"], summary["rejected"], summary["clients_rejected_most"]
    rejected_clients = count_text(summary["clients_rejected"], "client")
    more = "" if summary["clients_complete"] else "more than "
    print_text(period)
    print_text(f"{count_text(total, 'request')} from {more}{count_text(summary['clients'], 'client')}")
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
