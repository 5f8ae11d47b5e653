"""``ratelimit-mw diff``: the rules that differ between two files, and the clients that the change affects."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from ..json_lines import LineParser
from ..output import FILE, Cell, command, count_text, json_option, note, print_json, print_table, print_text
from ..source import Source
from .changes import Change, compare
from .logs import RequestLog, field_option, format_text, limit_option, logs_argument, notes_on_features, notes_on_replay
from .report import Comparison
from .simulation import Simulation, forwarded_feature

_CHANGES: Final = {"newly_rejected": "newly rejected", "newly_allowed": "newly allowed"}


@command(
    "ratelimit-mw diff ratelimit.toml new.toml",
    "ratelimit-mw diff ratelimit.toml new.toml access.log access.log.2.gz",
    "ratelimit-mw diff ratelimit.toml new.toml caddy.log --field user=request.headers.X-User --json",
)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@logs_argument(required=False)
@field_option
@limit_option
@json_option
def diff(old: Path, new: Path, access_logs: tuple[str, ...], fields: dict[str, str], limit: int, as_json: bool) -> None:
    """Show the rules and settings that differ between the files OLD and NEW.

    With access logs, both rule sets decide the requests of the logs. The command shows the requests that
    NEW rejects and OLD allows, and those that NEW allows and OLD rejects, by rule and by client. For logs and their
    options, see replay.

    The exit code is 1 if a request is newly rejected, or if a file or a log is invalid. Otherwise, and without a log,
    it is 0.
    """
    sources = [Source.from_file(file) for file in (old, new)]
    changes = compare(sources[0].settings, sources[1].settings)
    comparison, formats = _replay(sources, access_logs, fields) if access_logs else (None, {})
    effect = None if comparison is None else {**comparison.as_json(limit), "formats": formats}
    if as_json:
        print_json({"changes": [change._asdict() for change in changes], "effect": effect})
    else:
        if not changes:
            print_text("No rule and no setting differs.")
        print_table("Changes", list(map(_change_row, changes)))
        if comparison is not None and effect is not None:
            _print_effect(comparison.new.period, effect)
    if effect is not None and effect["newly_rejected"]:
        raise click.exceptions.Exit(1)


def _replay(
    sources: Iterable[Source], paths: tuple[str, ...], fields: dict[str, str]
) -> tuple[Comparison, dict[str, int]]:
    """Replay the logs through both rule sets. Return the comparison, and the formats of the logs."""
    old, new = sources
    note(*notes_on_replay(old), *notes_on_replay(new))
    headers = [forwarded_feature(source.settings) for source in (old, new)]
    parser = LineParser(fields, (*old.rules.needs, *new.rules.needs, *headers))
    log = RequestLog(paths, parser)
    comparison = Comparison(log, Simulation(old.settings), Simulation(new.settings))
    sides = ((old, comparison.old), (new, comparison.new))
    note(*(text for side, report in sides for text in (*notes_on_features(side, parser), *report.notes(side))))
    return comparison, log.logs.formats


def _change_row(change: Change) -> dict[str, Cell]:
    return {
        "change": change.kind,
        "rule": change.rule or "(settings)",
        "field": change.field,
        "old": change.old or "-",
        "new": change.new or "-",
        "place": change.place,
    }


def _print_effect(period: str, effect: dict[str, Any]) -> None:
    total = effect["requests"]
    print_text(period)
    print_text(format_text(effect["formats"]))
    print_text(f"{count_text(total, 'request')} from {count_text(effect['clients'], 'client')}")
    print_text(f"{effect['rejected_old']:,} rejected before, {effect['rejected_new']:,} after")
    for change, text in _CHANGES.items():
        clients = count_text(effect[f"clients_{change}"], "client")
        print_text(f"{effect[change]:,} {text} ({effect[change] / total:.1%}) from {clients}")
    click.echo()
    print_table("Rejections by rule", [_rule_row(rule) for rule in effect["rules"]])
    for change, text in _CHANGES.items():
        print_table(f"Clients {text}", [_client_row(row, text) for row in effect[f"most_{change}"]])


def _rule_row(rule: dict[str, Any]) -> dict[str, Cell]:
    counts = {"before": rule["rejected_old"], "after": rule["rejected_new"]}
    return {
        "rule": rule["name"],
        **{name: "-" if count is None else f"{count:,}" for name, count in counts.items()},
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
