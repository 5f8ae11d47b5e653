"""``ratelimit-mw replay``: apply the rules to an access log, and show which clients they reject."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ...keys.features import BUILT_IN
from ...keys.parts import feature_of
from ...operations import Answer, Cell, Line, Table
from ...settings import Settings
from ..application import SourceCommand
from ..clients import check_used
from ..json_lines import NAMES
from ..log_formats import LineParser
from ..logs import field_option, format_option, logs_argument
from ..output import command, count_text, json_flag, parsed
from ..source import Source
from ..toml import toml
from .notes import check_routes, limit_option, notes_on, show_log
from .plot import draw, plot_option
from .report import ReplayReport
from .request_log import RequestLog
from .simulation import Simulation, forwarded_feature
from .suggest import suggest

_SHARE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,2})?)%", re.ASCII)
_TITLES: Final = {"banned": "of which banned", "delayed": "delayed"}
_MODES: Final = (("enforce", "Rules", "rejected"), ("shadow", "Shadow rules, which never reject", "would reject"))


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
    "ratelimit-mw replay ratelimit.toml caddy.log --field user=account.id",
    "zcat access.log.*.gz | ratelimit-mw replay ratelimit.toml - --json",
    cls=SourceCommand,
)
@logs_argument()
@format_option
@field_option
@click.option("--suggest", "share", metavar="SHARE", callback=parsed(_parse_share),
              help='Suggest limits that reject about this share of the requests of each rule at most, such as "1%".'
                   " It replays the logs twice more.")  # fmt: skip
@plot_option
@limit_option
@json_flag
def replay(
    source: Source,
    access_logs: tuple[str, ...],
    name: str | None,
    fields: dict[str, str],
    share: float | None,
    plot: Path | None,
    limit: int,
) -> Answer:
    """Apply the rules in FILE to access logs, and show which clients they would have rejected.

    ACCESS_LOG is a log in one of the formats of --format, or JSON lines of Caddy, Traefik, Envoy, nginx and others,
    plain or compressed (gz, bz2, xz, zst). Several logs are read as one, by time, in any order. "-" reads stdin. Each
    request is decided at the time of its line, and no store is used.

    The features of a request come from its line: ip, method, path, user, header:user-agent, header:referer and
    query:NAME. JSON lines may have the host, other headers, and the features of --field. Behind the trusted_proxies of
    FILE, the client is found in X-Forwarded-For, as in the application: after the user agent in a text log.

    A line that is in no known format is invalid. A log with more than 1% of such lines is an error.
    """
    if share is not None and not source.overview.is_file:
        raise click.UsageError("--suggest takes a FILE. Copy the limits of decorators into one")
    check_routes(source, fields)
    known = {*BUILT_IN, *NAMES, *source.rules.lists.needs}
    check_used(source, source.rules.rules, dict.fromkeys(map(feature_of, fields)), known)
    parser = LineParser(fields, (*source.rules.needs, forwarded_feature(source.settings)), name or "")
    log = RequestLog(access_logs, parser)
    app = None if source.overview.is_file else source
    report = ReplayReport(log, Simulation(source.running_settings, app))
    notes = list(notes_on(source, parser, report))
    summary = {**report.as_json(limit), **log.logs.as_json()}
    shown: list[Table | Line | str] = [*_show(report.period, summary)]
    if share is not None:
        summary["suggested"] = {"share": share, **_suggest(source.settings, share, log)}
        shown += _show_suggested(summary)
    if plot is not None:
        draw(report, plot, limit)
        notes.append(f"picture written to {plot}")
    return Answer(summary, shown, notes)


def _suggest(settings: Settings, share: float, log: RequestLog) -> dict[str, Any]:
    """Return suggested limits, and the counts of a replay with all of them."""
    rules = suggest(settings, share, log)
    report = ReplayReport(log, Simulation(settings.replaced(rules=tuple(rules))), "verifying", 1)
    counts = report.rules_json()
    for rule, before, after in zip(counts, settings.rules, rules, strict=True):
        rule["suggested"] = None if before is after else [str(quota) for quota in after.quotas]
    return {
        "requests": log.count,
        "rejected": report.rejected,
        "clients_rejected": report.clients_rejected,
        "rules": counts,
    }


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


def _show_suggested(summary: dict[str, Any]) -> Iterator[Line | str]:
    """Show each suggestion as a line of the settings, below a comment with the counts of both replays."""
    suggested = summary["suggested"]
    share = f"{suggested['share'] * 100:g}%"
    yield Line(f"Suggested limits, which reject about {share} of the requests of a rule at most", "bold")
    for before, after in zip(summary["rules"], suggested["rules"], strict=True):
        if after["suggested"] is None:
            yield f"# {after['name']}: no suggestion, because no limit of this rule decides a request of the log"
        else:
            yield f"# {after['name']}: rejects {_share_of(after)} instead of {_share_of(before)}"
            yield f"limits = {toml(after['suggested'])}"
    yield ""
    rejected = f"{suggested['rejected']:,} rejected ({suggested['rejected'] / suggested['requests']:.1%})"
    yield f"With all of them: {rejected} from {count_text(suggested['clients_rejected'], 'client')}"


def _share_of(rule: dict[str, Any]) -> str:
    share = rule["rejected"] / max(rule["matched"], 1)
    return f"{rule['rejected']:,} of {rule['matched']:,} requests ({share:.1%})"
