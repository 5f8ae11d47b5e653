"""The counts of a traffic log per rule, endpoint and event, as commands, the admin API and the dashboard show them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, get_args

from ..limiter.observers.outcomes import REJECTED, Outcome
from ..limiter.observers.traffic import event_of, rule_in_log
from ..rules.ruleset import RuleSet
from ..traffic import TopClients, TrafficLog
from .forms import client_text
from .times import time_json

Kind = Literal["rule", "endpoint", "event"]
COUNT: Final = "count"
"""The outcome of an event that is not a decision of the limiter."""
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
_EVERY: Final = 10**9
"""More clients than a log keeps: the smallest counts of two outcomes may add up to a large one."""


class TrafficSeries(NamedTuple):
    """A rule, an endpoint or an event: its counts by outcome."""

    kind: Kind
    name: str
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def event(self, outcome: str) -> str:
        """Return the event of an outcome. Requests without a rule have events of their own."""
        if self.kind == "event":
            return self.name
        return event_of(self.name, outcome) if self.kind == "rule" else f"{self.kind}:{self.name}:{outcome}"

    def lines(self) -> dict[str, list[str]]:
        """Return the events of each curve by its name: all outcomes of a rejection are one."""
        lines: dict[str, list[str]] = defaultdict(list)
        for outcome in sorted(self.counts, key=(*OUTCOMES, COUNT).index):
            lines["rejected" if outcome in REJECTED else outcome].append(self.event(outcome))
        return lines


def read_series(log: TrafficLog, start: float, end: float, rules: RuleSet) -> dict[Kind, list[TrafficSeries]]:
    """Return the counts of a time range by kind, the largest first. An empty kind is left out."""
    names = {rule_in_log(name): name for name in rules.by_name}
    found: dict[tuple[Kind, str], TrafficSeries] = {}
    for event, number in log.events(start, end).items():
        kind, name, outcome = _parts(event)
        name = names.get(name, name) if kind == "rule" else name
        found.setdefault((kind, name), TrafficSeries(kind, name, {})).counts[outcome] = number
    kinds: dict[Kind, list[TrafficSeries]] = defaultdict(list)
    for series in sorted(found.values(), key=lambda each: -each.total):
        kinds[series.kind].append(series)
    return dict(kinds)


def report_json(log: TrafficLog, start: float, end: float, rules: RuleSet) -> dict[str, Any]:
    """Return the outcomes of a time range as JSON: a row for each rule, even for those without a request."""
    found = {each.name: each for each in read_series(log, start, end, rules).get("rule", ())}
    names = dict.fromkeys([*rules.by_name, *sorted(found)])
    rows = [total_json(found.get(name) or TrafficSeries("rule", name, {}), rules) for name in names]
    return {"from": time_json(start), "to": time_json(end), "rules": rows}


def total_json(series: TrafficSeries, rules: RuleSet) -> dict[str, Any]:
    """Return the counts of a series. ``rejected`` includes all rejections. A rule in shadow mode rejects nothing."""
    total = series.total
    if series.kind == "event":
        return {"event": series.name, "total": total}
    rule = rules.by_name.get(series.name) if series.kind == "rule" else None
    counts = {outcome: series.counts.get(outcome, 0) for outcome in OUTCOMES}
    counts["rejected"] = sum(counts[outcome] for outcome in REJECTED)
    return {
        series.kind: series.name,
        **({"mode": rule.source.mode if rule else ""} if series.kind == "rule" else {}),
        "total": total,
        **counts,
        "share": counts["rejected"] / max(total, 1),
        "shadow_share": counts["shadow"] / max(total, 1),
    }


def top_json(
    log: TrafficLog, start: float, end: float, rules: RuleSet, rule: str | None = None, limit: int = 10
) -> dict[str, Any]:
    """Return the clients that were rejected most as JSON, including those that a rule in shadow mode would reject.

    Below the count ``complete_from``, clients may be missing.
    """
    several = [each for each in read_series(log, start, end, rules).get("rule", ()) if rule in (None, each.name)]
    rejections = [(each.total - each.counts.get("allowed", 0), each) for each in several]
    rows: list[dict[str, Any]] = []
    complete_from = 1
    for number, series in sorted(rejections, key=lambda each: -each[0]):
        if not number or (len(rows) == limit and number < rows[-1]["rejected"]):
            break  # no client of the other rules has as many
        events = [series.event(outcome) for outcome in series.counts if outcome != "allowed"]
        clients = clients_of(log, series, events, start, end, rules, limit)
        complete_from = max(complete_from, clients.complete_from)
        rows += [{"rule": series.name, "client": client, "rejected": total} for client, total in clients]
        rows = sorted(rows, key=lambda row: (-row["rejected"], row["rule"], row["client"]))[:limit]
    return {"clients": rows, "complete_from": complete_from}


def clients_of(
    log: TrafficLog, series: TrafficSeries, events: Iterable[str], start: float, end: float, rules: RuleSet, limit: int
) -> TopClients:
    """Return the clients with the highest counts of some events together, with the words of each client."""
    counts, complete_from = Counter[str](), 1
    for event in events:
        found = log.top(event, start, end, _EVERY)
        counts.update(dict(found))
        complete_from += found.complete_from - 1
    largest = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:limit]
    if series.kind == "rule":
        largest = [(client_text(client, series.name, rules), total) for client, total in largest]
    return TopClients(largest, complete_from)


def missing_text(complete_from: int) -> str:
    """Return a sentence on the clients that are missing in a list; an empty text if it is complete."""
    return f"Clients below {complete_from:,} may be missing." if complete_from > 1 else ""


def _parts(event: str) -> tuple[Kind, str, str]:
    """Return the kind, the name and the outcome of an event.

    >>> _parts("rule:api:rejected"), _parts("request:denied"), _parts("url_shorten")
    (('rule', 'api', 'rejected'), ('rule', '', 'denied'), ('event', 'url_shorten', 'count'))
    """
    start, _, outcome = event.rpartition(":")
    kind, _, name = start.partition(":")
    if outcome in OUTCOMES:
        if start == "request":
            return "rule", "", outcome
        if kind in ("rule", "endpoint") and name:
            return kind, name, outcome  # type: ignore[return-value]
    return "event", event, COUNT
