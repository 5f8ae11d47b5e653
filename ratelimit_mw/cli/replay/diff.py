"""``ratelimit-mw diff``: the rules that differ between two files, and the clients that the change affects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...operations import Answer, Cell, Table
from ..log_formats import LineParser
from ..logs import field_option, format_option, logs_argument
from ..output import FILE, command, count_text, json_flag
from ..source import Source
from .changes import Change, changes_between
from .notes import check_routes, limit_option, notes_on, show_log
from .report import ReplayReport, compare
from .request_log import RequestLog
from .simulation import Simulation, forwarded_feature

_CHANGES: Final = {"newly_rejected": "newly rejected", "newly_allowed": "newly allowed"}


@command(
    "ratelimit-mw diff ratelimit.toml new.toml",
    "ratelimit-mw diff ratelimit.toml new.toml access.log access.log.2.gz",
    "ratelimit-mw diff ratelimit.toml new.toml caddy.log --field user=id --json",
)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@logs_argument(required=False)
@format_option
@field_option
@limit_option
@json_flag
def diff(
    old: Path, new: Path, access_logs: tuple[str, ...], name: str | None, fields: dict[str, str], limit: int
) -> Answer:
    """Show the rules and settings that differ between the files OLD and NEW, and the lines in which they do.

    With access logs, both rule sets decide the requests of the logs. The command shows the requests that
    NEW rejects and OLD allows, and those that NEW allows and OLD rejects, by rule and by client. For logs and their
    options, see replay.

    The exit code is 1 if a request is newly rejected, or if a file or a log is invalid. Otherwise, and without a log,
    it is 0.
    """
    sources = [Source.from_file(file) for file in (old, new)]
    changes = changes_between(sources[0].settings, sources[1].settings)
    shown: list[Table | str] = [] if changes else ["No rule and no setting differs."]
    shown.append(Table("Changes", list(map(_change_row, changes))))
    summary: dict[str, Any] = {"changes": [change._asdict() for change in changes], "effect": None}
    if not access_logs:
        return Answer(summary, shown)
    for source in sources:
        check_routes(source, fields)
    headers = [forwarded_feature(source.settings) for source in sources]
    parser = LineParser(fields, (*(name for source in sources for name in source.rules.needs), *headers), name or "")
    log = RequestLog(access_logs, parser)
    before, after = (
        ReplayReport(log, Simulation(source.settings), f"replaying the {age} rules", side)
        for side, (age, source) in enumerate(zip(("old", "new"), sources, strict=True))
    )
    effect = summary["effect"] = {**compare(before, after, limit), "formats": log.logs.formats}
    notes = [*notes_on(sources[0], parser, before), *notes_on(sources[1], parser, after)]
    return Answer(summary, [*shown, *_show(after.period, effect)], notes, bool(effect["newly_rejected"]))


def _change_row(change: Change) -> dict[str, Cell]:
    return {
        "change": change.kind,
        "rule": change.rule,
        "old": change.old,
        "new": change.new,
        "place": change.place,
    }


def _show(period: str, effect: dict[str, Any]) -> Iterator[Table | str]:
    yield from show_log(period, effect)
    yield f"{effect['rejected_old']:,} rejected before, {effect['rejected_new']:,} after"
    for change, text in _CHANGES.items():
        clients = count_text(effect[f"clients_{change}"], "client")
        yield f"{effect[change]:,} {text} ({effect[change] / effect['requests']:.1%}) from {clients}"
    yield ""
    yield Table("Rejections by rule", list(map(_rule_row, effect["rules"])))
    for change, text in _CHANGES.items():
        yield Table(f"Clients {text}", [_client_row(row, text) for row in effect[f"most_{change}"]])


def _rule_row(rule: dict[str, Any]) -> dict[str, Cell]:
    before, after = ("-" if rule[name] is None else f"{rule[name]:,}" for name in ("rejected_old", "rejected_new"))
    return {
        "rule": rule["name"],
        "before": before,
        "after": after,
        "newly rejected": rule["newly_rejected"],
        "newly allowed": rule["newly_allowed"],
    }


def _client_row(row: dict[str, Any], change: str) -> dict[str, Cell]:
    return {
        "client": row["client"],
        "requests": row["requests"],
        change: row["count"],
        "share": row["count"] / row["requests"],
        "rules": ", ".join(row["rules"]),
    }
