"""The program of a plan, which decides in memory, against the general way that all other decisions take."""

import random
from typing import Any

from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.testing import ManualClock, limits_timed_by

USERS = ("ann", "bob", "cid", None)
BAN = {"after": 3, "within": "1m", "for": "2m"}


def numbers(verdict: Verdict) -> list[object]:
    """Return all that a verdict shows, without the keys: those of a test's clock have a suffix."""
    decisions = [
        (d.rule, str(d.quota), d.allowed, d.limit, d.remaining, d.retry_us, d.reset_us, d.at_us, d.delay_us, d.why)
        for d in verdict.decisions
    ]
    return [verdict.allowed, verdict.status, verdict.retry_after, *decisions]


def play(limiter: Limiter, clock: ManualClock, may_cost: bool) -> list[list[object]]:
    """Return the numbers of random requests, which are the same in each call."""
    chance, played = random.Random(7), []
    for _ in range(200):
        features = {"user": chance.choice(USERS), "region": chance.choice(("DE", "FR"))}
        request = {name: value for name, value in features.items() if value is not None}
        cost = chance.choice((None, None, None, 0, 1, 3))
        played.append(numbers(limiter.hit(request, cost if may_cost else None)))
        clock.advance(chance.choice((0, 0, 0, 0.25, 7, 61)))
    return played


@each(
    "options",
    [
        [{"limits": "3/minute"}],
        [{"limits": "3/minute", "algorithm": "gcra"}],
        [{"limits": "3/minute", "algorithm": {"name": "sliding-window-log", "count_rejected": True}}],
        [{"limits": "2/minute", "algorithm": {"name": "leaky-bucket", "mode": "queue"}}],
        [{"limits": ["2/s", "5/minute", "20/hour"]}],
        [{"limits": "3/minute", "cost": 2}],
        [{"limits": "3/minute", "cost": lambda features: 1 + (features.get("user") == "ann")}],
        [{"limits": "3/minute", "mode": "shadow"}, {"limits": "5/minute"}],
        [{"limits": "3/minute", "when_missing": "reject"}],
        [{"limits": "3/minute", "match": {"region": "DE"}}, {"limits": "5/minute", "key": []}],
        [{"limits": "3/minute", "per_key": {"bob": "5/minute", "cid": "2/s; 4/minute"}}],
        [{"limits": "3/minute", "schedule": {"00:00-00:05": "6/minute"}}],
        [{"limits": lambda user: {"ann": "2/minute", "bob": "unlimited"}.get(user, "4/minute")}],
        [{"limits": lambda user: {"ann": "2/minute"}.get(user, "4/minute")}, {"limits": "5/minute"}],
        [{"limits": "3/minute", "ban": BAN}],
        [{"limits": ["3/minute", "1/s"], "ban": BAN}, {"limits": "4/minute"}],
        [{"limits": "3/minute", "count_when": {"status": [401]}}],
        [{"limits": "2 concurrent"}, {"limits": "9/minute"}],
    ],
)
def test_a_program_decides_as_the_general_way(options: list[dict[str, Any]]) -> None:
    """Both ways return the same verdicts, for random requests, costs and times."""
    rules = [Rule(name=f"r{i}", **{"key": ["user"], **each}) for i, each in enumerate(options)]
    may_cost = not callable(options[0].get("cost"))
    bound, general = ManualClock(1_000_000.0), ManualClock(1_000_000.0)
    played = play(Limiter(rules, clock=bound), bound, may_cost)
    with limits_timed_by(general):  # no program runs on a test's clock
        assert played == play(Limiter(rules), general, may_cost)


def test_a_request_without_a_key_is_allowed() -> None:
    """The rule does not apply to it: one with an adaptive limit, with a lease, and with a plain limit."""
    adaptive = {"limits": "adaptive 2..9 concurrent", "target": "1s"}
    leased = {"limits": "99/minute", "lease": "10%"}
    for options, store in ((adaptive, None), (leased, SharedStore()), ({}, None)):
        limiter = Limiter([Rule(name="api", key=["user"], **{"limits": "1/minute", **options})], store)
        assert [limiter.hit({}).decisions for _ in range(3)] == [()] * 3
        assert limiter.hit({"user": "ann"}).rules == ("api",)
