"""``ratelimit-mw diff``: the rules that differ between two files, and the clients that the change affects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from ...operations import Answer, Table
from ...rules.places import places_in
from ...rules.rule import Rule
from ...settings import Settings
from ...settings.files import read
from ...stores.url import redacted_url
from ..log_formats import LineParser
from ..logs import RequestLog, format_option, logs_argument
from ..output import FILE, command, count_text, json_flag, toml
from ..source import Source
from .command import limit_option, show_log
from .report import ReplayReport, compare
from .simulation import Simulation

_CHANGES: Final = {"newly_rejected": "newly rejected", "newly_allowed": "newly allowed"}
_RULE_SETTINGS: Final = ("rules", "limits", "$schema")
_URLS: Final = ("store", "traffic_log")
_SETTINGS: Final = "(settings)"


@command(
    "ratelimit-mw diff ratelimit.toml new.toml",
    "ratelimit-mw diff ratelimit.toml new.toml access.log access.log.2.gz",
    "ratelimit-mw diff ratelimit.toml new.toml access.log --json",
)
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@logs_argument(required=False)
@format_option
@limit_option
@json_flag
def diff(old: Path, new: Path, access_logs: tuple[str, ...], name: str | None, limit: int) -> Answer:
    """Show what differs between the settings files OLD and NEW.

    Rules and settings are shown with their lines.

    With access logs, both rule sets decide the requests of the logs. The command shows the requests that
    NEW rejects and OLD allows, and those that NEW allows and OLD rejects, by rule and by client. For logs and their
    options, see replay.

    The exit code is 1 if a request is newly rejected, or if a file or a log is invalid. Otherwise, and without a log,
    it is 0.
    """
    sources = [Source.from_settings(file) for file in (old, new)]
    changes = _changes_between(*(source.settings for source in sources))
    shown: list[Table | str] = [] if changes else ["No rule and no setting differs."]
    shown.append(Table("Changes", changes))
    summary: dict[str, Any] = {"changes": changes, "effect": None}
    if not access_logs:
        return Answer(summary, shown)
    simulations = old_rules, new_rules = [Simulation(source) for source in sources]
    parser = LineParser([*old_rules.needs, *new_rules.needs], name)
    log = RequestLog(access_logs, parser)
    before = ReplayReport(log, old_rules, "replaying the old rules")
    after = ReplayReport(log, new_rules, "replaying the new rules", side=1)
    effect = summary["effect"] = {**compare(before, after, limit), "formats": log.formats}
    notes = [note for simulation in simulations for note in simulation.notes(parser)]
    return Answer(summary, [*shown, *_show(after.period, effect)], notes, bool(effect["newly_rejected"]))


def _changes_between(old: Settings, new: Settings) -> list[dict[str, Any]]:
    """Return the rules that differ between two settings files, in the order of the new one.

    A change has the lines that the other file does not have, as TOML, and the place of the rule.
    """
    before, after = _texts(old), _texts(new)
    changes = []
    for name in dict.fromkeys((*after, *before)):
        (old_lines, place), (new_lines, _) = before.get(name, ([], "")), after.get(name, ([], ""))
        if old_lines != new_lines:
            kind = "added" if name not in before else "removed" if name not in after else "changed"
            gone = [each for each in old_lines if each not in new_lines]
            added = [each for each in new_lines if each not in old_lines]
            place = after[name][1] if name in after else place
            changes.append({"kind": kind, "rule": name, "old": gone, "new": added, "place": place})
    return changes


def _texts(settings: Settings) -> dict[str, tuple[list[str], str]]:
    """Return the text of each rule by name, and of the other settings, each with its place."""
    data, place_of = read(Path(settings.source), {}), places_in(settings.source)
    others = {name: value for name, value in data.items() if name not in _RULE_SETTINGS}
    return {
        _SETTINGS: (_lines(others), settings.source),
        **{
            rule.name or f"rule-{i + 1}": (_lines(_options(rule)), place_of(rule.place.path))
            for i, rule in enumerate(settings.rules)
        },
        **{
            f"overrides {name}": (_lines(amendment.options), place_of(f"rules[{amendment.position}]"))
            for name, amendment in settings.amendments.items()
        },
    }


def _options(rule: Rule) -> dict[str, Any]:
    options = {name: value for name, value in rule.set_options.items() if name != "name"}
    return {"limits": list(map(str, rule.quotas)), **options}


def _lines(options: Any) -> list[str]:
    """Return options as lines of TOML, without passwords."""
    shown = {name: redacted_url(value) if name in _URLS else value for name, value in options.items()}
    return [f"{name} = {toml(value if name != 'secret' else '(not shown)')}" for name, value in shown.items()]


def _show(period: str, effect: dict[str, Any]) -> Iterator[Table | str]:
    yield from show_log(period, effect)
    yield f"{effect['rejected_old']:,} rejected before, {effect['rejected_new']:,} after"
    for change, text in _CHANGES.items():
        clients = count_text(effect[f"clients_{change}"], "client")
        yield f"{effect[change]:,} {text} ({effect[change] / effect['requests']:.1%}) from {clients}"
    yield ""
    yield Table("Rejections by rule", effect["rules"])
    for change, text in _CHANGES.items():
        yield Table(f"Clients {text}", effect[f"most_{change}"])
