"""The parts that ``report``, ``top`` and the admin API share: the time range, the JSON, and errors without records."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, get_args

import click

from ..clock import SECOND
from ..errors import ConfigError
from ..limiter.events import REJECTED, Outcome
from ..limiter.history import RecordedOutcomes, RejectedClient
from ..limiter.records import LONGEST
from ..quota import parse_duration
from ..rules.ruleset import RuleSet
from ..stores import redacted_url
from .json_forms import client_text
from .output import Failure, parsed
from .source import Source
from .times import time_json

_OWN_MEMORY: Final = (
    "the store memory:// is in each process of your application, so a command cannot read it. Count with the metrics"
    " for Prometheus or OpenTelemetry, use the admin API of `ratelimit-mw serve`, or set a store that processes share,"
    " such as redis://localhost:6379/0 or lmdb:///var/lib/app/ratelimit"
)


DEFAULT: Final = "24h"


def parse_last(text: str) -> float:
    """Return the seconds of a time range such as "24h". ``ConfigError`` for one that is not recorded."""
    if not 0 < (seconds := parse_duration(text) / SECOND) <= LONGEST:
        raise ConfigError(f"expected a time of at most 7 days, such as 1h or 7d; got {text}")
    return seconds


last_option: Callable[..., Any] = click.option(
    "--last", default=DEFAULT, show_default=True, metavar="DURATION", callback=parsed(parse_last),
    help="The time range, up to 7d.",
)  # fmt: skip


def report_of(rules: RuleSet, found: RecordedOutcomes) -> dict[str, Any]:
    """Return recorded outcomes as JSON: a row for each rule, even for those without a request."""
    modes = {rule.name: rule.source.mode for rule in rules.rules}
    names = dict.fromkeys([*modes, *sorted(found.rules)])
    rows = [_row(name, modes.get(name, ""), found.rules.get(name, {})) for name in names]
    return {"from": time_json(found.start), "to": time_json(found.end), "rules": rows}


def _row(name: str, mode: str, outcomes: Mapping[Outcome, int]) -> dict[str, Any]:
    """``rejected`` includes the outcomes that have a key of their own beside it."""
    counts = {outcome: outcomes.get(outcome, 0) for outcome in get_args(Outcome)}
    counts["rejected"] = sum(counts[outcome] for outcome in REJECTED)
    decided = counts["rejected"] + counts["shadow"]
    return {"rule": name, "mode": mode, **counts, "share": decided / max(decided + counts["allowed"], 1)}


def clients_json(rules: RuleSet, clients: Iterable[RejectedClient]) -> list[dict[str, Any]]:
    """Return rejected clients as JSON, with the client as ``inspect`` names it."""
    return [{**each._asdict(), "client": client_text(each.client, each.rule, rules)} for each in clients]


def check_recorded(source: Source, what: str) -> None:
    """Raise ``Failure`` unless the processes of the source record this where a command can read it."""
    settings = source.limits.limiter.settings if source.limits else source.settings
    if settings.record not in (what, "clients"):
        name = source.settings.source or "the application"
        raise Failure(f'{name} does not record {what}. Set record = "{what}", and restart your application')
    if redacted_url(settings.store).startswith(("memory:", "MemoryStore")):
        raise Failure(_OWN_MEMORY)
