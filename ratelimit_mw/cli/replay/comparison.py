"""Counts how the decisions of two rule sets differ, in one pass over a log."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ...decision import Verdict
from ..access_log import LogEntry
from .report import DENY_LIST, REQUESTS, ClientTable, ReplayReport
from .simulation import Simulation

NEWLY_REJECTED: Final = 1
NEWLY_ALLOWED: Final = 2


class Comparison:
    """The decisions of the rules as they were, and as they will be."""

    def __init__(self, old: Simulation, new: Simulation) -> None:
        self.old, self.new = ReplayReport(old), ReplayReport(new)
        self._client = new.client
        names = [DENY_LIST, *dict.fromkeys((*self.new.rules, *self.old.rules))]
        self._columns = {name: number for number, name in enumerate(names, 3)}
        self.clients = ClientTable(3 + len(names), (NEWLY_REJECTED, NEWLY_ALLOWED, REQUESTS))
        self.rejected = self.allowed = 0
        self._by_rule = {NEWLY_REJECTED: Counter[str](), NEWLY_ALLOWED: Counter[str]()}

    def add(self, entry: LogEntry) -> None:
        """Decide a request by both rule sets."""
        before, after = self.old.add(entry), self.new.add(entry)
        row = self.clients.row(self._client(entry))
        row[REQUESTS] += 1
        if before.allowed and not after.allowed:
            self.rejected += 1
            self._count(NEWLY_REJECTED, after, row)
        elif after.allowed and not before.allowed:
            self.allowed += 1
            self._count(NEWLY_ALLOWED, before, row)

    def _count(self, change: int, rejection: Verdict, row: list[int]) -> None:
        row[change] += 1
        for rule in {decision.rule for decision in rejection.rejected_by} or {DENY_LIST}:
            self._by_rule[change][rule] += 1
            row[self._columns[rule]] += 1

    def as_json(self, limit: int) -> dict[str, Any]:
        old, new = self.old.as_json(0), self.new.as_json(0)
        return {
            "requests": self.new.requests,
            **{name: new[name] for name in ("first", "last", "clients", "clients_complete")},
            "rejected_old": self.old.rejected,
            "rejected_new": self.new.rejected,
            "newly_rejected": self.rejected,
            "newly_allowed": self.allowed,
            "clients_newly_rejected": self.clients.count(NEWLY_REJECTED),
            "clients_newly_allowed": self.clients.count(NEWLY_ALLOWED),
            "rules": list(self._rules(_by_name(old), _by_name(new))),
            "most_newly_rejected": self._most(NEWLY_REJECTED, limit),
            "most_newly_allowed": self._most(NEWLY_ALLOWED, limit),
        }

    def _rules(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the counts of each rule; None for those of a rule that one side does not have."""
        return [
            {
                "name": name,
                "rejected_old": old.get(name),
                "rejected_new": new.get(name),
                "newly_rejected": self._by_rule[NEWLY_REJECTED][name],
                "newly_allowed": self._by_rule[NEWLY_ALLOWED][name],
            }
            for name in self._columns
            if name != DENY_LIST or any(counts[name] for counts in self._by_rule.values())
        ]

    def _most(self, change: int, limit: int) -> list[dict[str, Any]]:
        """Return the clients with most requests of a change, and the rules that reject them on that side."""
        return [self._client_as_json(client, change) for client in self.clients.top(limit, change)]

    def _client_as_json(self, client: str, change: int) -> dict[str, Any]:
        row = self.clients.rows[client]
        rules = [name for name, column in self._columns.items() if row[column]]
        return {"client": client, "requests": row[REQUESTS], "count": row[change], "rules": rules}


def _by_name(report: Mapping[str, Any]) -> dict[str, int]:
    return {rule["name"]: rule["rejected"] for rule in report["rules"]}
