"""Every number of a report, the top clients, curves and the dashboard equals a count by brute force, on every store."""

import random
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from traffic_records import NOW

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.dashboard.data import read_data
from ratelimit_mw.dashboard.view import View
from ratelimit_mw.operations.traffic import OUTCOMES, LogOutcomes
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog

DAY = 86_400
RULES = [Rule(name=name, limits="1/minute") for name in ("api", "login")]
REJECTED = {"rejected", "banned", "denied", "unavailable", "shed"}
LISTS = {"rejected": REJECTED, "shadow": {"shadow"}, "allowed": {"allowed"}}
EVENTS = [f"rule:api:{outcome}" for outcome in OUTCOMES]
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


def largest(found: Found, outcomes: set[str]) -> list[tuple[str, str, int]]:
    """Return the 20 clients with the most records of these outcomes."""
    clients = Counter((each[1], each[3]) for each in found if each[2] in outcomes)
    return [(rule, client, -less) for less, rule, client in sorted((-n, *key) for key, n in clients.items())[:20]]


def counted(found: Found, rule: str, outcomes: set[str], start: int, step: int, number: int) -> list[int]:
    """Return the records of a rule in each step of a curve."""
    times = [each[0] for each in found if each[1] == rule and each[2] in outcomes]
    edges = pairwise(range(start, start + number * step + 1, step))
    return [sum(first <= at < end for at in times) for first, end in edges]


def check_page(page: dict[str, Any], found: Found, of_clients: Found) -> None:
    """Check the lists of clients and the curves of the dashboard."""
    for line, several in LISTS.items():
        assert [tuple(each.values()) for each in page["clients"][line]] == largest(of_clients, several)
    traffic = page["traffic"]
    first = int(datetime.fromisoformat(traffic["start"]).timestamp())
    assert {shown["rule"] for shown in traffic["curves"]} == {"api", "login", "gone"}
    for shown in traffic["curves"]:
        for line, numbers in shown["lines"].items():
            place = first, traffic["step"], len(numbers)
            assert numbers == counted(found, shown["rule"], LISTS[line], *place), (shown["rule"], line)


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
    limiter = Limiter(RULES, clock=clock, settings=load_settings({"traffic_clients": True}))
    limiter.traffic_log = logs[0]
    for step, seconds in ((60, 3_600), (60, DAY), (300, 3 * DAY), (3_600, 29 * DAY)):
        start = NOW - seconds
        counts = Counter(each[1:3] for each in whole(found, step, start))
        outcomes = LogOutcomes(logs[0], start, NOW, limiter.rules)
        page = read_data(limiter, View(start=datetime.fromtimestamp(start, UTC).isoformat(), clients=True))
        rows = {row["rule"]: row for row in outcomes.report()["rules"]}
        assert {row["rule"]: row for row in page["traffic"]["totals"]} == {k: v for k, v in rows.items() if v["total"]}
        check_page(page, found, whole(found, 3_600, start))
        for rule in ("api", "login", "gone"):
            own = {outcome: counts[rule, outcome] for outcome in OUTCOMES}
            rejected = sum(own[name] for name in REJECTED)
            row = rows.pop(rule)
            assert {name: row[name] for name in OUTCOMES} == {**own, "rejected": rejected}
            assert row["total"] == sum(own.values())
            assert row["share"] == rejected / max(row["total"], 1)
        assert not rows
        of_clients = whole(found, 3_600, start)
        top = outcomes.top(limit=20)
        assert [tuple(each.values()) for each in top["clients"]] == largest(of_clients, {*OUTCOMES} - {"allowed"})
        assert top["complete_from"] == 1
        events = {event: (event.split(":")[1], {event.split(":")[2]}) for event in EVENTS}
        for event, curve in logs[0].curves(events, start, NOW).items():
            assert curve.counts == counted(found, *events[event], curve.start, curve.step, len(curve.counts)), event
    for each in logs:
        each.close()
