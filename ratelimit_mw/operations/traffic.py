"""The outcomes of rules and endpoints in a traffic log, and the operations and the JSON that show them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any, Final, Literal, NamedTuple, get_args

from ..clock import SECOND
from ..errors import ConfigError
from ..limiter.limiter import Limiter
from ..limiter.observers.events import REJECTED, Outcome
from ..limiter.observers.traffic import event_of, rule_in_log
from ..quota import parse_duration
from ..rules.ruleset import RuleSet
from ..runtime.blocking import Call, run_beside
from ..traffic import TrafficLog
from .answer import Answer, Cell, Table, client_text, period_text, time_json
from .arguments import Last, Most, OnlyRule, operation
from .clients import ALL_CLIENTS

Kind = Literal["rule", "endpoint"]
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)
_NOT_ALLOWED: Final = frozenset(OUTCOMES) - {"allowed"}
_PARTS: Final = ("banned", "denied", "unavailable", "shed")
"""The parts of ``rejected`` that have a column if there are any."""
_EVERY: Final = 10**9
"""More clients than a log keeps: the smallest counts of two outcomes may add up to a large one."""


@operation("report", "/v1/report", "FILE", "FILE --last 7d", "FILE --last 1h --json", "APP", reads_log=True)
async def report(call: Call, limiter: Limiter, *, last: Last = "24h") -> Answer:
    """Show how many requests each rule allowed and rejected.

    For a rule in shadow mode, it shows those that the rule would have rejected.

    The numbers are those of the traffic log, so they include all workers, which write every 15 seconds. The start is
    rounded down as the log keeps its counts: to the minute for the last day.
    """
    found = await _outcomes(call, limiter, last)
    json = found.report()
    rows = json["rules"]
    parts = [part for part in _PARTS if any(row[part] for row in rows)]
    title = f"{found.log.name}: requests from {period_text(found.start // 60 * 60, found.end // 60 * 60)}"
    notes = [] if any(row["total"] for row in rows) else ["no request is recorded in this time"]
    return Answer(json, [Table(title, [_cells(row, parts) for row in rows])], notes)


@operation("top", "/v1/top", "FILE", "FILE --rule login --last 1h", "FILE --limit 100 --json", "APP", reads_log=True)
async def top(call: Call, limiter: Limiter, *, last: Last = "24h", rule: OnlyRule = None, limit: Most = 10) -> Answer:
    """Show the clients that were rejected most.

    They include those that rules in shadow mode would have rejected.

    The numbers are those of the traffic log, so they include all workers. They need the setting traffic_clients = true.
    In each hour, the log keeps the clients of a rule with the highest counts. If it has dropped some, a note has the
    number below which clients may be missing.
    """
    name = None if rule is None else limiter.rules.named(rule).name
    found = await _outcomes(call, limiter, last, needs_clients=True)
    json = await run_beside(call, found.top, name, limit)
    rows = [{**each, "client": each["client"] or ALL_CLIENTS} for each in json["clients"]]
    missing = missing_text(json["complete_from"])
    notes = [missing] * bool(missing) if rows else ["no rejection is recorded in this time"]
    return Answer(json, [Table(found.log.name, rows)], notes)


async def _outcomes(call: Call, limiter: Limiter, last: str, needs_clients: bool = False) -> LogOutcomes:
    """Return the outcomes in the traffic log of a limiter. ``ConfigError`` where the log does not record them."""
    name, log = limiter.settings.source or "the application", limiter.traffic_log
    if log is None:
        missing = 'has no traffic log. Add traffic_log = "sqlite:///traffic.db"'
    elif needs_clients and not limiter.settings.traffic_clients:
        missing = "does not record clients. Add traffic_clients = true"
    else:
        end = limiter.clocks.time() / SECOND
        return await run_beside(call, LogOutcomes, log, end - parse_duration(last) / SECOND, end, limiter.rules)
    raise ConfigError(f"{name} {missing}, and restart your application")


def _cells(row: dict[str, Any], parts: list[str]) -> dict[str, Cell]:
    return {
        "rule": row["rule"] or "(no rule)",
        "mode": row["mode"],
        "allowed": row["allowed"],
        "rejected": row["rejected"],
        **{f"of which {part}": row[part] for part in parts},
        "would be rejected": row["shadow"],
        "share": row["share"],
    }


class TrafficSeries(NamedTuple):
    """A rule or an endpoint: its counts by outcome. ``mode`` is that of a rule; "" for one that is gone."""

    kind: Kind
    name: str
    mode: str
    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def event(self, outcome: str) -> str:
        """Return the event of an outcome. Requests without a rule have events of their own."""
        return event_of(self.name, outcome) if self.kind == "rule" else f"{self.kind}:{self.name}:{outcome}"

    def lines(self) -> dict[str, list[str]]:
        """Return the events of each curve by its name: all outcomes of a rejection are one."""
        lines: dict[str, list[str]] = defaultdict(list)
        for outcome in sorted(self.counts, key=OUTCOMES.index):
            lines["rejected" if outcome in REJECTED else outcome].append(self.event(outcome))
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the counts. ``rejected`` includes all rejections. A rule in shadow mode rejects nothing."""
        counts = {outcome: self.counts.get(outcome, 0) for outcome in OUTCOMES}
        counts["rejected"] = sum(counts[outcome] for outcome in REJECTED)
        return {
            self.kind: self.name,
            **({"mode": self.mode} if self.kind == "rule" else {}),
            "total": self.total,
            **counts,
            "share": counts["rejected"] / max(self.total, 1),
            "shadow_share": counts["shadow"] / max(self.total, 1),
        }


class LogOutcomes:
    """The outcomes of rules and endpoints in a time range of a traffic log, the largest first. It may wait for the log.

    ``start`` and ``end`` are in seconds since 1970.
    """

    def __init__(self, log: TrafficLog, start: float, end: float, rules: RuleSet) -> None:
        self.log, self.start, self.end, self.rules = log.as_written(), start, end, rules
        names = {rule_in_log(name): name for name in rules.by_name}
        found: dict[tuple[Kind, str], TrafficSeries] = {}
        for event, number in self.log.events(start, end).items():
            if parts := _parse_event(event):
                kind, name, outcome = parts
                name = names.get(name, name) if kind == "rule" else name
                found.setdefault((kind, name), self._new_series(kind, name)).counts[outcome] = number
        self.series = sorted(found.values(), key=lambda each: -each.total)

    def _new_series(self, kind: Kind, name: str) -> TrafficSeries:
        rule = self.rules.by_name.get(name) if kind == "rule" else None
        return TrafficSeries(kind, name, rule.source.mode if rule else "", {})

    def report(self) -> dict[str, Any]:
        """Return the outcomes as JSON: a row for each rule, even for those without a request."""
        found = {each.name: each for each in self.series if each.kind == "rule"}
        names = dict.fromkeys([*self.rules.by_name, *sorted(found)])
        rows = [(found.get(name) or self._new_series("rule", name)).as_json() for name in names]
        return {"from": time_json(self.start), "to": time_json(self.end), "rules": rows}

    def top(self, rule: str | None = None, limit: int = 10) -> dict[str, Any]:
        """Return the clients that were rejected most as JSON, with those that a rule in shadow mode would reject.

        Below the count ``complete_from``, clients may be missing.
        """
        found, complete_from = self.clients(_NOT_ALLOWED, limit, rule)
        rows = [{"rule": each["rule"], "client": each["client"], "rejected": each["total"]} for each in found]
        return {"clients": rows, "complete_from": complete_from}

    def clients(
        self, outcomes: Collection[str], limit: int, rule: str | None = None
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the clients of rules with the highest counts of some outcomes together.

        The number is the count from which on no client is missing.
        """
        of_rules = [each for each in self.series if each.kind == "rule" and rule in (None, each.name)]
        totals = [(sum(each.counts.get(outcome, 0) for outcome in outcomes), each) for each in of_rules]
        rows, complete_from = list[tuple[int, str, str]](), 1
        for total, series in sorted(totals, key=lambda each: -each[0]):
            if len(rows) == limit and total < -rows[-1][0]:
                break  # no client of the other rules has as many
            counts, missing = Counter[str](), 0
            for outcome in series.counts.keys() & outcomes:
                found = self.log.top(series.event(outcome), self.start, self.end, _EVERY)
                counts.update(dict(found))
                missing += found.complete_from - 1
            complete_from = max(complete_from, missing + 1)
            rows = sorted([*rows, *((-number, series.name, client) for client, number in counts.items())])[:limit]
        shown = [{"rule": name, "client": client_text(each, name, self.rules), "total": -n} for n, name, each in rows]
        return shown, complete_from


def missing_text(complete_from: int) -> str:
    """Return a sentence on the clients that are missing in a list; an empty text if it is complete."""
    return f"Clients below {complete_from:,} may be missing." if complete_from > 1 else ""


def _parse_event(event: str) -> tuple[Kind, str, str] | None:
    """Return the kind, the name and the outcome of an event; None for an event of the application.

    >>> _parse_event("rule:api:rejected"), _parse_event("request:denied"), _parse_event("shorten")
    (('rule', 'api', 'rejected'), ('rule', '', 'denied'), None)
    """
    start, _, outcome = event.rpartition(":")
    kind, _, name = start.partition(":")
    if outcome not in OUTCOMES:
        return None
    if start == "request":
        return "rule", "", outcome
    return (kind, name, outcome) if kind in ("rule", "endpoint") else None  # type: ignore[return-value]
