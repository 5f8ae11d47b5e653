"""The decisions of rules about a log, in tables of its database: by rule, by client and over time.

One query finds how much each limit would have to allow. A request of a client is within a limit whose amount is at
least what the client used in the period before, with this request. So the amount that all but a share of the requests
used is a limit that rejects about this share at most.
"""

from collections.abc import Iterator
from typing import Any, Final

from ...clock import SECOND
from ...decision import Verdict
from ...keys.features import INVALID
from ...operations.answer import period_text, time_json
from ...quota import Quota
from ..access_log import LogEntry
from ..logs import RequestLog
from .simulation import Simulation

_DAY: Final = 86_400
STEPS: Final = {
    1: "second", 5: "5 seconds", 15: "15 seconds", 60: "minute", 300: "5 minutes", 900: "15 minutes",
    3600: "hour", 3 * 3600: "3 hours", 6 * 3600: "6 hours",
    _DAY: "day", 7 * _DAY: "week", 28 * _DAY: "4 weeks", 364 * _DAY: "52 weeks",
}  # fmt: skip
"""The steps of a curve in seconds."""
_SHOWN_STEPS: Final = 120
_DENY_LIST: Final = "(deny list)"
"""The name of the deny list among the rules that reject a client."""
_TABLES: Final = (
    "decided (side, number, time, client, rejected, PRIMARY KEY (side, number)) WITHOUT ROWID",
    "rejection (side, number, client, rule, enforced)",
    "client (side, client, requests, rejected, PRIMARY KEY (side, client)) WITHOUT ROWID",
    "used (number, policy, client, at, cost, counted)",
)
_INSERT_REJECTION: Final = "INSERT INTO rejection VALUES (?, ?, ?, ?, ?)"
_INSERT_USE: Final = "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?)"
_CLIENTS: Final = """
    INSERT INTO client SELECT side, client, count(*), sum(rejected) FROM decided WHERE side = :side GROUP BY client
"""
_TOTALS: Final = "SELECT count(*), count(nullif(rejected, 0)), sum(rejected) FROM client WHERE side = :side"
_TOP: Final = """
    SELECT client, requests, rejected FROM client WHERE side = :side AND rejected
    ORDER BY rejected DESC, requests DESC, client LIMIT :limit
"""
_CURVE: Final = """
    SELECT time / :step * :step, count(*), sum(rejected) FROM decided WHERE side = :side GROUP BY 1 ORDER BY 1
"""
_CLIENTS_OF_RULES: Final = "SELECT rule, count(DISTINCT client) FROM rejection WHERE side = :side GROUP BY rule"
_RULES_OF_CLIENT: Final = "SELECT DISTINCT rule FROM rejection WHERE side = :side AND client = :client AND enforced"
_DENIED: Final = f"SELECT count(*) FROM rejection WHERE side = :side AND rule = '{_DENY_LIST}'"  # noqa: S608
_CHANGED: Final = """
    CREATE TABLE changed AS SELECT number, new.client, new.rejected FROM decided AS old
    JOIN decided AS new USING (number) WHERE old.side = 0 AND new.side = 1 AND old.rejected <> new.rejected
"""
_CHANGES: Final = "SELECT count(*), count(DISTINCT client) FROM changed WHERE rejected = :side"
_OF_CHANGES: Final = "number IN (SELECT number FROM changed WHERE rejected = :side)"
_CHANGES_OF_RULES: Final = f"""
    SELECT rule, count(*) FROM rejection WHERE side = :side AND enforced AND {_OF_CHANGES} GROUP BY rule
"""  # noqa: S608
_MOST_CHANGED: Final = """
    SELECT client, requests, count(*) FROM changed JOIN client USING (client)
    WHERE client.side = 1 AND changed.rejected = :side
    GROUP BY client ORDER BY 3 DESC, requests DESC, client LIMIT :limit
"""
_AMOUNT: Final = """
    SELECT cost - counted
        + sum(counted) OVER (PARTITION BY client ORDER BY at RANGE BETWEEN :period - 1 PRECEDING AND CURRENT ROW)
        - coalesce(sum(counted) OVER later, 0) AS amount
    FROM used WHERE policy = :policy
    WINDOW later AS (PARTITION BY client, at ORDER BY number ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
    ORDER BY amount DESC LIMIT 1 OFFSET (SELECT cast(count(*) * :share AS INTEGER) FROM used WHERE policy = :policy)
"""
"""The amount that the client of a request used until then in a period, which is too low for a share of the requests."""


class ReplayReport:
    """The decisions of one rule set about a log. ``side`` is the number of the rule set in a comparison.

    The counts of a shadow rule are what it would have rejected. With ``has_uses``, the table ``used`` has the cost of
    each request.
    """

    def __init__(
        self, log: RequestLog, simulation: Simulation, action: str = "replaying", side: int = 0, has_uses: bool = False
    ) -> None:
        self.log, self.simulation, self._side = log, simulation, side
        counts = {"matched": 0, "rejected": 0, "delayed": 0, "banned": 0, "clients_rejected": 0}
        self._rules: dict[str, dict[str, Any]] = {
            # The limits of the rule first. A limit of a single client, or of a schedule, is added when it rejects.
            rule.name: {
                "name": rule.name,
                "mode": rule.source.mode,
                **counts,
                "limits": {str(limit.quota): 0 for limit in rule.limits},
            }
            for rule in simulation.rules
        }
        self.names = [_DENY_LIST, *self._rules]
        for table in _TABLES:
            log.db.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        log.db.executemany("INSERT INTO decided VALUES (?, ?, ?, ?, ?)", self._decide(action, has_uses))
        self.rows(_CLIENTS)
        ((self.clients, self.clients_rejected, self.rejected),) = self.rows(_TOTALS)
        for name, clients in self.rows(_CLIENTS_OF_RULES):
            if name != _DENY_LIST:
                self._rules[name]["clients_rejected"] = clients

    def _decide(self, action: str, has_uses: bool) -> Iterator[tuple[Any, ...]]:
        decide, client_of, side = self.simulation.decide, self.simulation.client, self._side
        insert = self.log.db.executemany
        shadow = {name for name, rule in self._rules.items() if rule["mode"] == "shadow"}
        for number, entry in enumerate(self.log.requests(action)):
            verdict, ip = decide(entry), client_of(entry)
            client = "(invalid)" if ip is INVALID else str(ip)
            allowed = verdict.allowed
            rejecting = self._count(verdict) if verdict.decisions or allowed else [_DENY_LIST]
            if rejecting:
                insert(_INSERT_REJECTION, [(side, number, client, rule, rule not in shadow) for rule in rejecting])
            if has_uses:
                insert(_INSERT_USE, _uses_of(number, entry, verdict))
            yield side, number, int(entry.time), client, not allowed

    def _count(self, verdict: Verdict) -> list[str]:
        """Count a verdict. Return the rules that reject, even in shadow mode."""
        name, rejecting, delays = "", list[str](), False
        for decision in verdict.decisions:
            rule = decision.hit[0].rule
            if rule != name:  # the decisions of a rule follow each other
                name, delays = rule, False
                counts = self._rules[name]
                counts["matched"] += 1
            if not decision.allowed:
                quota, limits = str(decision.quota), counts["limits"]
                limits[quota] = limits.get(quota, 0) + 1
                if name not in rejecting:
                    rejecting.append(name)
                    counts["rejected"] += 1
                    counts["banned"] += decision.banned
            if decision.delay_us and not delays and verdict.delay:
                delays = True
                counts["delayed"] += 1
        return rejecting

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement on this side."""
        return self.log.db.execute(statement, {"side": self._side, **values}).fetchall()

    @property
    def period(self) -> str:
        return period_text(int(self.log.first), int(self.log.last))

    def log_json(self) -> dict[str, Any]:
        """Return what the log contains."""
        first, last = time_json(int(self.log.first)), time_json(int(self.log.last))
        return {"requests": self.log.count, "first": first, "last": last, "clients": self.clients}

    def as_json(self, limit: int) -> dict[str, Any]:
        most = [dict(zip(("client", "requests", "rejected"), row, strict=True)) for row in self.rows(_TOP, limit=limit)]
        return {
            **self.log_json(),
            "rejected": self.rejected,
            "denied": self.rows(_DENIED)[0][0],
            "clients_rejected": self.clients_rejected,
            "rules": [
                {**rule, "limits": [{"limit": limit, "rejected": n} for limit, n in rule["limits"].items()]}
                for rule in self._rules.values()
            ],
            "clients_rejected_most": [
                {**row, "rules": self.in_order(self.rows(_RULES_OF_CLIENT, client=row["client"]))} for row in most
            ],
            "curve": self.curve(),
        }

    def rejected_by(self, name: str) -> int | None:
        """Return the requests that a rule rejects; None for a rule that is not on this side."""
        return self._rules[name]["rejected"] if name in self._rules else None

    def in_order(self, rows: list[tuple[Any, ...]]) -> list[str]:
        """Return the names in the first column of rows: the deny list, then the rules, in their order."""
        found = {name for name, *_ in rows}
        return [name for name in self.names if name in found]

    def curve(self) -> dict[str, Any]:
        """Return the curve at a step of which few cover the log: the start of each step, and its counts."""
        span = self.log.last - self.log.first
        step = next((step for step in STEPS if span <= step * _SHOWN_STEPS), max(STEPS))
        times, requests, rejected = zip(*self.rows(_CURVE, step=step), strict=True)
        return {"step": step, "times": [*times], "requests": [*requests], "rejected": [*rejected]}

    def suggest(self, share: float) -> dict[str, list[str] | None]:
        """Return the limits of each rule that reject this share of its requests, from 0.0 to 1.0, at most.

        Concurrency limits stay as they are. A rule without a request in the log has no suggestion.
        """
        suggested: dict[str, list[str] | None] = {}
        for rule in self.simulation.rules:
            timed = [limit for limit in rule.limits if not limit.quota.concurrent]
            part = 0.0 if rule.source.ban else share / max(len(timed), 1)  # a ban rejects more than the limits
            places = [{"policy": limit.policy, "period": limit.quota.period_us, "share": part} for limit in timed]
            found = [self.rows(_AMOUNT, **place) for place in places]
            amounts = {limit.quota: rows[0][0] for limit, rows in zip(timed, found, strict=True) if rows}
            quotas = [_scaled(quota, amounts[quota]) if quota in amounts else quota for quota in rule.source.quotas]
            suggested[rule.name] = list(map(str, quotas)) if found and all(found) else None
        return suggested


def _uses_of(number: int, entry: LogEntry, verdict: Verdict) -> Iterator[tuple[Any, ...]]:
    """Yield the use of each limit of the rules of a request: its cost, and the part that counts by its status."""
    for decision in verdict.decisions:
        limit, key, cost = decision.hit
        if cost:
            counts = limit.statuses is None or entry.status in limit.statuses
            yield number, limit.policy, key, round(entry.time * SECOND), cost, cost * counts


def _scaled(quota: Quota, amount: int) -> Quota:
    """Return a quota with another amount of at most two digits before its zeros, and its burst in proportion."""
    if quota.burst:  # the burst passes at once
        amount = -(-amount * quota.amount // quota.burst)
    unit = 10 ** max(0, len(str(amount)) - 2)
    amount = -(-amount // unit) * unit
    burst = quota.burst and max(1, round(quota.burst * amount / quota.amount))
    return quota.replace(amount=amount, burst=burst)


def compare(old: ReplayReport, new: ReplayReport, limit: int) -> dict[str, Any]:
    """Return what changes from the decisions of the side 0, the rules as they were, to those of the side 1."""
    new.log.db.execute(_CHANGED)
    sides = {"newly_rejected": new, "newly_allowed": old}
    counts = {name: side.rows(_CHANGES)[0] for name, side in sides.items()}
    by_rule = {name: dict(side.rows(_CHANGES_OF_RULES)) for name, side in sides.items()}
    return {
        **new.log_json(),
        "rejected_old": old.rejected,
        "rejected_new": new.rejected,
        **{name: requests for name, (requests, _) in counts.items()},
        **{f"clients_{name}": clients for name, (_, clients) in counts.items()},
        "rules": [
            {
                "name": name,
                "rejected_old": old.rejected_by(name),
                "rejected_new": new.rejected_by(name),
                **{change: of_rules.get(name, 0) for change, of_rules in by_rule.items()},
            }
            for name in dict.fromkeys((*new.names, *old.names))
            if name != _DENY_LIST or any(name in of_rules for of_rules in by_rule.values())
        ],
        **{f"most_{name}": _most_changed(side, limit) for name, side in sides.items()},
    }


def _most_changed(side: ReplayReport, limit: int) -> list[dict[str, Any]]:
    """Return the clients with most requests of a change, and the rules that reject them on that side."""
    return [
        {
            "client": client,
            "requests": requests,
            "count": count,
            "rules": side.in_order(side.rows(f"{_RULES_OF_CLIENT} AND {_OF_CHANGES}", client=client)),
        }
        for client, requests, count in side.rows(_MOST_CHANGED, limit=limit)
    ]
