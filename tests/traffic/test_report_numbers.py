"""Every number of a report, of the top clients and of curves equals a count by brute force, on every store."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from traffic_records import NOW

from ratelimit_mw import Rule
from ratelimit_mw.operations.traffic import OUTCOMES, report_json, top_json
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog

DAY = 86_400
RULES = RuleSet([Rule(name=name, limits="1/minute") for name in ("api", "login")])
Found = list[tuple[float, str, str, str]]


def random_records(seed: int) -> Found:
    """Return times, rules, outcomes and clients: of the last minutes, and of the last 30 days."""
    chance = random.Random(seed)
    return [
        (
            NOW - (30 * DAY) ** chance.random(),
            chance.choice(("api", "login", "gone")),
            chance.choice(OUTCOMES),
            f"ip=192.0.2.{int(chance.paretovariate(0.7)) % 250}",
        )
        for _ in range(1_500)
    ]


def whole(found: Found, step: int, start: float) -> Found:
    """Return the records from ``start`` on, which is rounded down to a bucket."""
    return [each for each in found if each[0] >= start // step * step]


def test_every_number_equals_a_count_by_brute_force(url: str, clock: ManualClock) -> None:
    """Two workers record and write in turn. Ranges begin in each resolution of the log."""
    logs = [TrafficLog(url, clock=clock) for _ in range(1 if url == "memory://" else 2)]
    found = random_records(len(url))
    for i, (at, rule, outcome, client) in enumerate(found):
        log = logs[i % len(logs)]
        log.record(f"rule:{rule}:{outcome}", client, at=at)
        if i % 300 == 0:
            log.flush()
    for each in logs:
        each.flush()
    for step, seconds in ((60, 3_600), (60, DAY), (300, 3 * DAY), (3_600, 29 * DAY)):
        start = NOW - seconds
        counts = Counter(each[1:3] for each in whole(found, step, start))
        rows = {row["rule"]: row for row in report_json(logs[0], start, NOW, RULES)["rules"]}
        for rule in ("api", "login", "gone"):
            own = {outcome: counts[rule, outcome] for outcome in OUTCOMES}
            rejected = sum(own[name] for name in ("rejected", "banned", "denied", "unavailable", "shed"))
            row = rows.pop(rule)
            assert {name: row[name] for name in OUTCOMES} == {**own, "rejected": rejected}
            assert row["total"] == sum(own.values())
            assert row["share"] == rejected / max(row["total"], 1)
        assert not rows
        clients = Counter((each[1], each[3]) for each in whole(found, 3_600, start) if each[2] != "allowed")
        expected = sorted((-number, *key) for key, number in clients.items())[:20]
        top = top_json(logs[0], start, NOW, RULES, limit=20)
        assert [(-each["rejected"], each["rule"], each["client"]) for each in top["clients"]] == expected
        assert top["complete_from"] == 1
        events = [f"rule:api:{outcome}" for outcome in OUTCOMES]
        for event, curve in logs[0].curves(events, start, NOW).items():
            times = [each[0] for each in found if ":".join(("rule", *each[1:3])) == event]
            edges = pairwise(range(curve.start, curve.end + 1, curve.step))
            assert curve.counts == [sum(first <= at < end for at in times) for first, end in edges], (event, seconds)
    for each in logs:
        each.close()
