"""The decisions of rules about a log, in tables of its database: by rule, by client and over time."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from ...decision import Verdict
from ...rules.compiled import CompiledRule
from ..output import count_text
from ..source import Source
from .logs import RequestLog
from .simulation import Simulation

_DAY: Final = 86_400
STEPS: Final = {
    1: "second", 5: "5 seconds", 15: "15 seconds", 60: "minute", 300: "5 minutes", 900: "15 minutes",
    3600: "hour", 3 * 3600: "3 hours", 6 * 3600: "6 hours",
    _DAY: "day", 7 * _DAY: "week", 28 * _DAY: "4 weeks", 364 * _DAY: "52 weeks",
}  # fmt: skip
"""The steps of a curve in seconds."""
_SHOWN_STEPS: Final = 120
_AT_ONCE: Final = 1_000
"""The rejections of one write."""
_DENY_LIST: Final = "(deny list)"
"""The name of the deny list among the rules that reject a client."""
_CURVE: Final = "SELECT time / :step * :step, count(*), sum(rejected) FROM decided{0} GROUP BY 1 ORDER BY 1"
_CHANGED: Final = """
    CREATE TABLE changed AS SELECT number, new.client, new.rejected FROM decided0 AS old
    JOIN decided1 AS new USING (number) WHERE old.rejected <> new.rejected
"""
_CHANGES_OF_RULES: Final = """
    SELECT rule, count(*) FROM changed JOIN rejection{side} AS own USING (number)
    WHERE changed.rejected = :side AND enforced GROUP BY rule
"""
_MOST_CHANGED: Final = """
    SELECT client, requests, count(*) FROM changed JOIN client1 USING (client) WHERE changed.rejected = :side
    GROUP BY client ORDER BY 3 DESC, requests DESC, client LIMIT :limit
"""
_RULES_OF_CHANGED: Final = """
    SELECT DISTINCT rule FROM changed JOIN rejection{side} AS own USING (number)
    WHERE changed.rejected = :side AND enforced AND changed.client = :client
"""


class ClientRow(NamedTuple):
    """A client with its requests, and those of them that are rejected."""

    client: str
    requests: int
    rejected: int


class RuleCounts:
    """The counts of one rule. The counts of a shadow rule are what it would have rejected."""

    def __init__(self, rule: CompiledRule) -> None:
        self.name = rule.name
        self.mode = rule.source.mode
        self.matched = self.rejected = self.delayed = self.banned = 0
        # The limits of the rule first. A limit of a single client, or of a schedule, is added when it rejects.
        self.rejected_by_limit = {str(limit.quota): 0 for limit in rule.limits}


class ReplayReport:
    """The decisions of one rule set about a log. ``side`` is the number of the rule set in a comparison."""

    def __init__(self, log: RequestLog, simulation: Simulation, action: str = "replaying", side: int = 0) -> None:
        self.log, self.simulation = log, simulation
        self._db, self._side = log.db, side
        self._rules = {rule.name: RuleCounts(rule) for rule in simulation.rules}
        self._db.execute(f"CREATE TABLE decided{side} (number INTEGER PRIMARY KEY, time, client, rejected)")
        self._db.execute(f"CREATE TABLE rejection{side} (number, client, rule, enforced)")
        rows = self._decide(action)
        while some := list(islice(rows, _AT_ONCE)):
            self._db.executemany(f"INSERT INTO decided{side} VALUES (?, ?, ?, ?)", some)  # noqa: S608
        self._db.execute(
            f"CREATE TABLE client{side} AS SELECT client, count(*) AS requests, sum(rejected) AS rejected"  # noqa: S608
            f" FROM decided{side} GROUP BY client"
        )
        self.clients, self.clients_rejected, self.rejected = self._row(
            f"SELECT count(*), count(nullif(rejected, 0)), sum(rejected) FROM client{side}"  # noqa: S608
        )

    def _decide(self, action: str) -> Iterator[tuple[Any, ...]]:
        decide, client_of = self.simulation.decide, self.simulation.client
        rejections: list[tuple[Any, ...]] = []
        insert = f"INSERT INTO rejection{self._side} VALUES (?, ?, ?, ?)"  # noqa: S608
        shadow = {name for name, rule in self._rules.items() if rule.mode == "shadow"}
        for number, entry in self.log.requests(action):
            verdict, client = decide(entry), client_of(entry)
            allowed = verdict.allowed
            rejecting = self._count(verdict) if verdict.decisions else [] if allowed else [_DENY_LIST]
            if rejecting:
                rejections += [(number, client, rule, rule not in shadow) for rule in rejecting]
                if len(rejections) >= _AT_ONCE:
                    self._db.executemany(insert, rejections)
                    rejections.clear()
            yield number, int(entry.time), client, not allowed
        self._db.executemany(insert, rejections)

    def _count(self, verdict: Verdict) -> list[str]:
        """Count a verdict. Return the rules that reject, even in shadow mode."""
        name, rejecting, delays = "", list[str](), False
        for decision in verdict.decisions:
            rule = decision.hit[0].rule
            if rule != name:  # the decisions of a rule follow each other
                name, delays = rule, False
                counts = self._rules[name]
                counts.matched += 1
            if not decision.allowed:
                quota = str(decision.quota)
                counts.rejected_by_limit[quota] = counts.rejected_by_limit.get(quota, 0) + 1
                if name not in rejecting:
                    rejecting.append(name)
                    counts.rejected += 1
                    counts.banned += decision.banned
            if decision.delay_us and not delays and verdict.delay:
                delays = True
                counts.delayed += 1
        return rejecting

    def _row(self, statement: str, **values: Any) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._db.execute(statement, values).fetchone()
        return row

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The times of the earliest and the latest request, in whole seconds."""
        return datetime.fromtimestamp(int(self.log.first), UTC), datetime.fromtimestamp(int(self.log.last), UTC)

    @property
    def period(self) -> str:
        return "{:%Y-%m-%d %H:%M:%S} to {:%Y-%m-%d %H:%M:%S} UTC".format(*self.span)

    def rules_json(self) -> list[dict[str, Any]]:
        """Return the counts of each rule."""
        statement = f"SELECT rule, count(DISTINCT client) FROM rejection{self._side} GROUP BY rule"  # noqa: S608
        clients = dict(self._db.execute(statement))
        return [
            {
                "name": rule.name,
                "mode": rule.mode,
                "matched": rule.matched,
                "rejected": rule.rejected,
                "delayed": rule.delayed,
                "banned": rule.banned,
                "clients_rejected": clients.get(rule.name, 0),
                "limits": [{"limit": limit, "rejected": n} for limit, n in rule.rejected_by_limit.items()],
            }
            for rule in self._rules.values()
        ]

    def as_json(self, limit: int) -> dict[str, Any]:
        first, last = self.span
        denied = f"SELECT count(*) FROM rejection{self._side} WHERE rule = :rule"  # noqa: S608
        return {
            "requests": self.log.count,
            "rejected": self.rejected,
            "denied": self._row(denied, rule=_DENY_LIST)[0],
            "clients": self.clients,
            "clients_rejected": self.clients_rejected,
            "first": first.isoformat(),
            "last": last.isoformat(),
            "rules": self.rules_json(),
            "clients_rejected_most": [
                {**row._asdict(), "rules": self._rejecting(row.client)} for row in self.top(limit) if row.rejected
            ],
            "curve": self.curve(),
        }

    def top(self, limit: int) -> list[ClientRow]:
        """Return the clients with the most rejections; ties by requests, then by name."""
        statement = f"SELECT * FROM client{self._side} ORDER BY rejected DESC, requests DESC, client LIMIT ?"  # noqa: S608
        return [ClientRow(*row) for row in self._db.execute(statement, [limit])]

    def curve(self) -> dict[str, Any]:
        """Return the curve at a step of which few cover the log: the start of each step, and its counts."""
        span = self.log.last - self.log.first
        step = next((step for step in STEPS if span <= step * _SHOWN_STEPS), max(STEPS))
        rows = self._db.execute(_CURVE.format(self._side), {"step": step})
        times, requests, rejected = zip(*rows, strict=True)
        return {"step": step, "times": [*times], "requests": [*requests], "rejected": [*rejected]}

    def _rejecting(self, client: str) -> list[str]:
        """Return the deny list and the rules that reject a client, in their order."""
        statement = f"SELECT DISTINCT rule FROM rejection{self._side} WHERE client = ? AND enforced"  # noqa: S608
        found = {rule for (rule,) in self._db.execute(statement, [client])}
        return [name for name in (_DENY_LIST, *self._rules) if name in found]

    def notes(self, source: Source) -> Iterator[str]:
        """Yield which counts are shared by clients."""
        of_ip = source.rules_by_feature().get("ip")
        rows = map(ClientRow._make, self._db.execute(f"SELECT * FROM client{self._side}"))  # noqa: S608
        if of_ip and (proxies := [row for row in rows if self.simulation.client.is_proxy(row.client)]):
            requests = count_text(sum(row.requests for row in proxies), "request")
            shown = f"{proxies[0].client}{' and other trusted proxies' if proxies[1:] else ', a trusted proxy,'}"
            yield (
                f"{requests} of {shown} have no address in {self.simulation.client.header.removeprefix('header:')}:"
                f" all clients behind a proxy share one count for {', '.join(of_ip)}"
            )
        if self.simulation.is_full:
            keys = self.simulation.max_keys
            yield f"more than {keys:,} keys at once: some clients share counts, and may be rejected too early"


class Comparison:
    """The decisions of the rules as they were, and as they will be."""

    def __init__(self, log: RequestLog, old: Simulation, new: Simulation) -> None:
        self.old = ReplayReport(log, old, "replaying the old rules")
        self.new = ReplayReport(log, new, "replaying the new rules", 1)
        self._db = log.db
        self._db.execute(_CHANGED)
        names = (*(rule.name for rule in new.rules), *(rule.name for rule in old.rules))
        self._names = [_DENY_LIST, *dict.fromkeys(names)]

    def as_json(self, limit: int) -> dict[str, Any]:
        first, last = self.new.span
        changes = {"newly_allowed": 0, "newly_rejected": 1}
        counted = "SELECT count(*), count(DISTINCT client) FROM changed WHERE rejected = ?"
        counts = {name: self._db.execute(counted, [side]).fetchone() for name, side in changes.items()}
        by_rule = {
            name: dict(self._db.execute(_CHANGES_OF_RULES.format(side=side), {"side": side}))
            for name, side in changes.items()
        }
        return {
            "requests": self.new.log.count,
            "first": first.isoformat(),
            "last": last.isoformat(),
            "clients": self.new.clients,
            "rejected_old": self.old.rejected,
            "rejected_new": self.new.rejected,
            **{name: requests for name, (requests, _) in counts.items()},
            **{f"clients_{name}": clients for name, (_, clients) in counts.items()},
            "rules": list(self._rules(by_rule)),
            **{f"most_{name}": self._most(side, limit) for name, side in changes.items()},
        }

    def _rules(self, by_rule: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, Any]]:
        """Yield the counts of each rule; None for those of a rule that one side does not have."""
        old, new = ({rule["name"]: rule["rejected"] for rule in side.rules_json()} for side in (self.old, self.new))
        for name in self._names:
            counts = {change: found.get(name, 0) for change, found in by_rule.items()}
            if name != _DENY_LIST or any(counts.values()):
                yield {"name": name, "rejected_old": old.get(name), "rejected_new": new.get(name), **counts}

    def _most(self, side: int, limit: int) -> list[dict[str, Any]]:
        """Return the clients with most requests of a change, and the rules that reject them on that side."""
        return [
            {"client": client, "requests": requests, "count": count, "rules": self._rules_of(side, client)}
            for client, requests, count in self._db.execute(_MOST_CHANGED, {"side": side, "limit": limit}).fetchall()
        ]

    def _rules_of(self, side: int, client: str) -> list[str]:
        rows = self._db.execute(_RULES_OF_CHANGED.format(side=side), {"side": side, "client": client})
        found = {rule for (rule,) in rows}
        return [name for name in self._names if name in found]
