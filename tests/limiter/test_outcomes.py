"""``count_when`` and ``count_unless``: which outcomes count, what is left after them, and rules that never count."""

import random
from typing import Any

import pytest
from limiter_ways import ANN, left, limiter, rule
from redis_handles import PATIENT
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.stores import open_store
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.store_suite import ALGORITHMS

MARKED: Any = {"count_when": {"marked": True}}


@each(
    ("options", "counting"),
    [
        ({"count_when": {"status": 401}}, [401]),
        ({"count_when": {"status": [401, "403"]}}, [401, 403]),
        ({"count_when": {"status": "4xx"}}, [401, 403, 404]),
        ({"count_when": {"status": ["4XX", 500]}}, [401, 403, 404, 500]),
        ({"count_unless": {"status": [302]}}, [200, 401, 403, 404, 500]),
        ({"count_unless": {"status": ["2xx", "3xx"]}}, [401, 403, 404, 500]),
        ({"count_when": {"status": "4xx"}, "count_unless": {"status": 404}}, [401, 403]),
        (MARKED, []),
        ({**MARKED, "count_unless": {"status": 404}}, []),
        ({"count_when": {"marked": True, "status": 401}}, [401]),
        ({"count_when": {"marked": False, "status": 401}}, [401]),
    ],
)
def test_a_status_counts_or_is_refunded(options: Any, counting: list[int]) -> None:
    """Codes, classes of codes, and what is excepted. The cost of each other status is refunded."""
    rate = limiter(rule("99/minute", **options))
    counted = []
    for status in (200, 302, 401, 403, 404, 500):
        before = left(rate)
        rate.conclude(rate.hit(ANN), status)
        counted += [status] if left(rate) != before else []
    assert counted == counting


@each("options", [MARKED, {"count_when": {"status": 401}}, {"count_unless": {"status": 200}}])
def test_a_mark_counts_whatever_the_status(options: Any) -> None:
    """A mark before the end keeps the cost, and one after the end charges it again, with the cost that was settled."""
    rate = limiter(rule("9/minute", cost=2, **options))
    before, after, settled = (rate.hit(ANN) for _ in range(3))
    before["r"].count()
    settled["r"].settle(1)
    for verdict in (before, after, settled):
        rate.conclude(verdict, 200)
    assert left(rate) == [7]
    after["r"].count()
    assert left(rate) == [5]
    settled["r"].count()
    settled["r"].count()
    assert left(rate) == [4]


def test_a_mark_of_other_rules_changes_nothing() -> None:
    """A rule that counts everything, a rule that did not apply, and a peek."""
    rate = limiter(rule("9/minute", "all"), rule("9/minute", "other", match={"path": "/other"}, **MARKED))
    verdict = rate.hit(ANN)
    for name in ("all", "other"):
        verdict[name].count()
    rate.peek(ANN)["all"].count()
    assert left(rate) == [8]


def test_an_unknown_outcome_counts() -> None:
    """A request that is cancelled keeps its cost, even without a mark."""
    rate = limiter(rule("9/minute", "marked", **MARKED), rule("9/minute", "failed", count_when={"status": 401}))
    rate.conclude(rate.hit(ANN), None)
    assert left(rate) == [8, 8]


def rates(verdict: Verdict) -> list[tuple[str, int, int]]:
    """Return the rest and the reset of each limit. Slots are held until the end of a request."""
    return [(d.rule, d.remaining, d.reset_us) for d in verdict.decisions if not d.quota.concurrent]


@pytest.mark.slow
def test_the_numbers_after_an_outcome_are_those_of_the_store(any_url: str, way: Any, clock: ManualClock) -> None:
    """On each store, for each algorithm: headers show before the correction what a peek shows after it."""
    chance = random.Random(7)
    store = open_store(any_url, PATIENT)
    options: Any = {"key": ["user"], "limits": "30/minute; 3 concurrent", "cost": 2, "count_when": {"status": 401}}
    spec: Any
    for i, spec in enumerate(ALGORITHMS):
        own = Rule(name=f"r{i}", algorithm=spec, **options)
        rate = Limiter([own, Rule(name="all", key=["user"], limits="999/minute")], store, clock)
        for _ in range(30):
            verdict = way(rate).hit(ANN)
            status = chance.choice([200, 401])
            shown = rates(verdict.after(status))
            assert verdict.rules == (own.name, "all")
            assert len(verdict.decisions) == 3
            way(rate).conclude(verdict, status)
            assert shown == rates(way(rate).peek(ANN, cost=0)), own
            clock.advance(chance.choice([0.0, 0.5, 3.0, 20.0]))
        way(rate).close()


@each("policy", ["local", "deny", "allow"])
def test_outcomes_without_the_store(policy: Any, way: Any) -> None:
    """Headers show the outcome, and a request is one decision."""
    store = SharedStore()
    store.down = True
    rate = Limiter([rule("9/minute", count_when={"status": 401}, on_store_error=policy)], store)
    verdict = way(rate).hit(ANN)
    shown = [[d.remaining for d in verdict.after(status).decisions] for status in (200, 401)]
    assert shown == {"local": [[9], [8]], "deny": [[0], [0]], "allow": [[], []]}[policy]
    assert rate.local_decisions == 1
    way(rate).close()
