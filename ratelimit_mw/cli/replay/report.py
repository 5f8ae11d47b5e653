"""Counts the decisions of a replay: by rule, by client and over time. Memory is bounded for any log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ...decision import Verdict
from ...rules.compiled import CompiledRule
from ..access_log import LogEntry
from .simulation import Simulation

_DAY: Final = 86_400
STEPS: Final = {
    1: "second", 5: "5 seconds", 15: "15 seconds", 60: "minute", 300: "5 minutes", 900: "15 minutes",
    3600: "hour", 3 * 3600: "3 hours", 6 * 3600: "6 hours",
    _DAY: "day", 7 * _DAY: "week", 28 * _DAY: "4 weeks", 364 * _DAY: "52 weeks",
}  # fmt: skip
"""The steps of a curve in seconds. Each divides the next one."""
_MAX_STEPS: Final = 10_000
_SHOWN_STEPS: Final = 120
MAX_CLIENTS: Final = 200_000
REQUESTS: Final = 0
REJECTED: Final = 1
DENIED: Final = 2
DENY_LIST: Final = "(deny list)"
"""The name of the deny list among the rules that reject a client."""


class ReplayCurve:
    """Requests and rejections over time, at the finest step that the bound on the number of steps allows."""

    def __init__(self) -> None:
        self._step = 1
        self._counts: dict[int, list[int]] = {}
        self.first, self.last = float("inf"), 0.0

    def add(self, time: float, rejected: bool) -> None:
        counts = self._counts.get(int(time) // self._step)
        if counts is None:
            while len(self._counts) >= _MAX_STEPS:
                wider = next(step for step in STEPS if step > self._step)
                self._counts, self._step = self._by(wider), wider
            counts = self._counts.setdefault(int(time) // self._step, [0, 0])
        counts[0] += 1
        counts[1] += rejected
        if time < self.first:
            self.first = time
        if time > self.last:
            self.last = time

    def _by(self, step: int) -> dict[int, list[int]]:
        counts: dict[int, list[int]] = {}
        for number, (requests, rejected) in self._counts.items():
            sums = counts.setdefault(number * self._step // step, [0, 0])
            sums[0] += requests
            sums[1] += rejected
        return counts

    def as_json(self) -> dict[str, Any]:
        """Return the curve at a step of which few cover the log: the start of each step, and its counts."""
        span = self.last - self.first
        step = next((step for step in STEPS if span <= step * _SHOWN_STEPS and step >= self._step), max(STEPS))
        counts = sorted(self._by(step).items())
        return {
            "step": step,
            "times": [number * step for number, _ in counts],
            "requests": [requests for _, (requests, _) in counts],
            "rejected": [rejected for _, (_, rejected) in counts],
        }


class ClientTable:
    """A row of counts for each client. Above ``MAX_CLIENTS``, clients with low counts are dropped.

    ``ranks`` are the columns that decide which clients stay, most important first.
    """

    def __init__(self, columns: int, ranks: Sequence[int]) -> None:
        self.most = MAX_CLIENTS
        self._empty = [0] * columns
        self._ranks = ranks
        self.rows: dict[str, list[int]] = {}
        self.is_complete = True

    def row(self, client: str) -> list[int]:
        row = self.rows.get(client)
        if row is None:
            if len(self.rows) >= self.most:
                self.rows = {client: self.rows[client] for client in self.top(self.most // 2)}
                self.is_complete = False
            row = self.rows[client] = self._empty.copy()
        return row

    def top(self, number: int, column: int | None = None) -> list[str]:
        """Return the clients with the highest counts, or the highest in one column; ties by requests, then by name."""
        ranks = self._ranks if column is None else (column, REQUESTS)
        counted = (client for client, row in self.rows.items() if column is None or row[column])
        return sorted(counted, key=lambda client: (*(-self.rows[client][rank] for rank in ranks), client))[:number]

    def count(self, column: int) -> int:
        """Return the number of clients with a count in a column."""
        return sum(row[column] > 0 for row in self.rows.values())


class RuleReport:
    """The counts of one rule. The counts of a shadow rule are what it would have rejected."""

    def __init__(self, rule: CompiledRule, column: int) -> None:
        self.name = rule.name
        self.mode = rule.source.mode
        self.column = column
        """The place of its rejections in the row of a client."""
        self.matched = 0
        self.rejected = 0
        self.delayed = 0
        self.banned = 0
        # The limits of the rule first. A limit of a single client, or of a schedule, is added when it rejects.
        self.rejected_by_limit = {str(limit.quota): 0 for limit in rule.limits}


class ReplayReport:
    """The decisions of one rule set about a log."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rules = {rule.name: RuleReport(rule, i) for i, rule in enumerate(simulation.rules, 3)}
        self.clients = ClientTable(3 + len(self.rules), (REJECTED, REQUESTS))
        self.curve = ReplayCurve()
        self.requests = self.rejected = self.denied = self.out_of_order = 0

    def add(self, entry: LogEntry) -> Verdict:
        """Decide and count a request."""
        verdict = self.simulation.decide(entry)
        row = self.clients.row(self.simulation.client(entry))
        self.requests += 1
        row[REQUESTS] += 1
        if not verdict.allowed:
            self.rejected += 1
            row[REJECTED] += 1
        self.out_of_order += entry.time < self.curve.last
        self.curve.add(entry.time, not verdict.allowed)
        if verdict.decisions:
            self._count(verdict, row)
        elif not verdict.allowed:
            self.denied += 1
            row[DENIED] += 1
        return verdict

    def _count(self, verdict: Verdict, row: list[int]) -> None:
        name, rejects, delays = "", False, False
        for decision in verdict.decisions:
            rule = decision.hit[0].rule
            if rule != name:  # the decisions of a rule follow each other
                name, rejects, delays = rule, False, False
                report = self.rules[name]
                report.matched += 1
            if not decision.allowed:
                quota = str(decision.quota)
                report.rejected_by_limit[quota] = report.rejected_by_limit.get(quota, 0) + 1
                if not rejects:
                    rejects = True
                    report.rejected += 1
                    report.banned += decision.banned
                    row[report.column] += 1
            if decision.delay_us and not delays and verdict.delay:
                delays = True
                report.delayed += 1

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The times of the earliest and the latest request, in whole seconds. There must be one."""
        return datetime.fromtimestamp(int(self.curve.first), UTC), datetime.fromtimestamp(int(self.curve.last), UTC)

    @property
    def period(self) -> str:
        return "{:%Y-%m-%d %H:%M:%S} to {:%Y-%m-%d %H:%M:%S} UTC".format(*self.span)

    def as_json(self, limit: int) -> dict[str, Any]:
        first, last = self.span
        return {
            "requests": self.requests,
            "rejected": self.rejected,
            "denied": self.denied,
            "clients": len(self.clients.rows) if self.clients.is_complete else self.clients.most,
            "clients_complete": self.clients.is_complete,
            "clients_rejected": self.clients.count(REJECTED),
            "first": first.isoformat(),
            "last": last.isoformat(),
            "out_of_order": self.out_of_order,
            "rules": list(map(self._rule_as_json, self.rules.values())),
            "clients_rejected_most": list(map(self._client_as_json, self.clients.top(limit, REJECTED))),
            "curve": self.curve.as_json(),
        }

    def _rule_as_json(self, rule: RuleReport) -> dict[str, Any]:
        return {
            "name": rule.name,
            "mode": rule.mode,
            "matched": rule.matched,
            "rejected": rule.rejected,
            "delayed": rule.delayed,
            "banned": rule.banned,
            "clients_rejected": self.clients.count(rule.column),
            "limits": [{"limit": limit, "rejected": n} for limit, n in rule.rejected_by_limit.items()],
        }

    def _client_as_json(self, client: str) -> dict[str, Any]:
        row = self.clients.rows[client]
        return {"client": client, "requests": row[REQUESTS], "rejected": row[REJECTED], "rules": self.rejecting(row)}

    def rejecting(self, row: Sequence[int]) -> list[str]:
        """Return the rules that reject the client of a row, and the deny list."""
        denied = [DENY_LIST] if row[DENIED] else []
        return denied + [rule.name for rule in self.rules.values() if rule.mode == "enforce" and row[rule.column]]
