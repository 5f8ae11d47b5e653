"""Suggests limits for a log: one query finds how much each limit would have to allow.

A request of a client is within a limit whose amount is at least what the client used in the period before, with this
request. So the amount that all but a share of the requests used is a limit that rejects about this share at most.
"""

from collections.abc import Iterator
from typing import Any, Final

from ...clock import SECOND
from ...quota import Quota
from ...settings import Settings
from ..logs import RequestLog
from .simulation import Simulation

_TABLE: Final = "used (number, policy, client, at, cost, counted)"
_AMOUNT: Final = """
    SELECT cost - counted
        + sum(counted) OVER (PARTITION BY client ORDER BY at RANGE BETWEEN :period - 1 PRECEDING AND CURRENT ROW)
        - coalesce(sum(counted) OVER later, 0) AS amount
    FROM used WHERE policy = :policy
    WINDOW later AS (PARTITION BY client, at ORDER BY number ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
    ORDER BY amount DESC LIMIT 1 OFFSET (SELECT cast(count(*) * :share AS INTEGER) FROM used WHERE policy = :policy)
"""
"""The amount that the client of a request used until then in a period, which is too low for a share of the requests."""


def suggest(settings: Settings, share: float, log: RequestLog) -> dict[str, list[str] | None]:
    """Return the limits of each rule that reject this share of its requests, from 0.0 to 1.0, at most.

    Concurrency limits stay as they are. A rule without a request in the log has no suggestion.
    """
    simulation = Simulation(settings)
    log.db.execute(f"CREATE TABLE {_TABLE}")
    log.insert("INSERT INTO used VALUES (?, ?, ?, ?, ?, ?)", _uses(simulation, log))
    suggested: dict[str, list[str] | None] = {}
    for rule in simulation.rules:
        timed = [limit for limit in rule.limits if not limit.quota.concurrent]
        part = 0.0 if rule.source.ban else share / max(len(timed), 1)  # a ban rejects more than the limits
        places = [{"policy": limit.policy, "period": limit.quota.period_us, "share": part} for limit in timed]
        found = [log.db.execute(_AMOUNT, place).fetchone() for place in places]
        amounts = {limit.quota: row[0] for limit, row in zip(timed, found, strict=True) if row}
        quotas = [_scaled(quota, amounts[quota]) if quota in amounts else quota for quota in rule.source.quotas]
        suggested[rule.name] = list(map(str, quotas)) if found and all(found) else None
    return suggested


def _uses(simulation: Simulation, log: RequestLog) -> Iterator[tuple[Any, ...]]:
    """Yield what each request uses of the limits of its rules."""
    for number, entry in enumerate(log.requests("searching")):
        for decision in simulation.decide(entry).decisions:
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
    return quota.with_amount(amount, burst)
