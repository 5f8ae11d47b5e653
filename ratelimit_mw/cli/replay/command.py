"""``ratelimit-mw replay``: apply the rules to an access log, and show which clients they reject."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ...operations import Answer, Cell, Line, Table
from ..log_formats import LineParser
from ..logs import RequestLog, format_option, format_text, logs_argument
from ..output import command, count_text, json_flag, toml
from ..source import Source, SourceCommand
from .plot import draw, plot_option
from .report import ReplayReport
from .simulation import Simulation

_SHARE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,2})?)%", re.ASCII)
_TITLES: Final = {"banned": "of which banned", "delayed": "delayed"}
_MODES: Final = (("enforce", "Rules", "rejected"), ("shadow", "Shadow rules, which never reject", "would reject"))

limit_option = click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True,
                            help="Maximum number of clients to show.")  # fmt: skip


def _parse_share(text: str) -> float:
    match = _SHARE.fullmatch(text)
    if match is None:
        raise click.BadParameter(f'expected a share from "0%" to "99.99%", for example "1%"; got {text!r}')
    return float(match[1]) / 100


@command(
    "ratelimit-mw replay ratelimit.toml access.log",
    "ratelimit-mw replay ratelimit.toml access.log --plot replay.svg",
    "ratelimit-mw replay ratelimit.toml access.log --suggest 1%",
    "ratelimit-mw replay --app shop:app access.log",
    "docker logs -t shop | ratelimit-mw replay ratelimit.toml - --json",
    cls=SourceCommand,
)
@logs_argument()
@format_option
@click.option(
    "--suggest",
    "share",
    metavar="SHARE",
    type=_parse_share,
    help='Suggest limits that reject about this share of the requests of each rule at most, such as "1%".',
)
@plot_option
@limit_option
@json_flag
def replay(
    source: Source, access_logs: tuple[str, ...], name: str | None, share: float | None, plot: Path | None, limit: int
) -> Answer:
    """Apply the rules in FILE to access logs, and show rejections.

    ACCESS_LOG is a log in one of the formats of --format, or JSON lines of Caddy, Traefik, Envoy, nginx and others,
    plain or compressed (gz, bz2, xz, zst). Several logs are read as one, by time, in any order. "-" reads stdin. Each
    request is decided at the time of its line, and no store is used.

    The features of a request come from its line: ip, method, path, user, header:user-agent, header:referer and
    query:NAME. JSON lines may have the host, other headers, and fields with the names of other features. Behind the
    trusted_proxies of FILE, the client is found in X-Forwarded-For, as in the application: after the user agent in a
    text log.

    A line that is in no known format is invalid. A log with more than 1% of such lines is an error.
    """
    simulation = Simulation(source)
    parser = LineParser(simulation.needs, name)
    log = RequestLog(access_logs, parser)
    report = ReplayReport(log, simulation, has_uses=share is not None)
    notes = [*simulation.notes(parser)]
    summary = {**report.as_json(limit), **log.lines_json()}
    shown: list[Table | Line | str] = [*_show(report.period, summary)]
    if share is not None:
        limits = report.suggest(share)
        summary["suggested"] = {"share": share, "limits": limits}
        shown += _show_suggested(share, limits)
    if plot is not None:
        draw(report, plot)
        notes.append(f"picture written to {plot}")
    return Answer(summary, shown, notes)


def show_log(period: str, counts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the requests of a log are: their times, formats and clients."""
    yield period
    yield format_text(counts["formats"])
    yield f"{count_text(counts['requests'], 'request')} from {count_text(counts['clients'], 'client')}"


def _show(period: str, summary: dict[str, Any]) -> Iterator[Table | str]:
    total, rejected, clients = summary["requests"], summary["rejected"], summary["clients_rejected_most"]
    yield from show_log(period, summary)
    yield f"{rejected:,} rejected ({rejected / total:.1%}) from {count_text(summary['clients_rejected'], 'client')}"
    if summary["denied"]:
        yield f"{summary['denied']:,} of them by the deny list"
    yield ""
    for mode, title, column in _MODES:
        rules = [rule for rule in summary["rules"] if rule["mode"] == mode]
        added = [name for name in _TITLES if any(rule[name] for rule in rules)]
        yield Table(title, [_rule_row(rule, column, added) for rule in rules])
    every = len(clients) == summary["clients_rejected"]
    title = "Clients with most rejections" if every else f"{len(clients)} clients with most rejections"
    rows = [{**row, "rules": ", ".join(row["rules"]), "share": row["rejected"] / row["requests"]} for row in clients]
    yield Table(title, rows)


def _rule_row(rule: dict[str, Any], column: str, added: Sequence[str]) -> dict[str, Cell]:
    """One limit per line, with its rejections when there are several limits."""
    limits = rule["limits"]
    return {
        "rule": rule["name"],
        "limit": [f"{each['limit']}: {each['rejected']:,}" if len(limits) > 1 else each["limit"] for each in limits],
        "matched": rule["matched"],
        column: rule["rejected"],
        **{_TITLES[name]: rule[name] for name in added},
        "share": rule["rejected"] / max(rule["matched"], 1),
        "clients": rule["clients_rejected"],
    }


def _show_suggested(share: float, limits: Mapping[str, list[str] | None]) -> Iterator[Line | str]:
    """Show each suggestion as a line of the settings, below a comment with its rule."""
    yield Line(f"Suggested limits that reject about {share * 100:g}% of the requests of a rule at most", "bold")
    for name, quotas in limits.items():
        if quotas is None:
            yield f"# {name}: no suggestion, because no known limit decides a request of the log"
        else:
            yield f"# {name}"
            yield f"limits = {toml(quotas)}"
