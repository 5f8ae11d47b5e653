"""The limiter applies shadow rules, plans, missing keys, costs and queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from limiter_ways import ANN, WAYS, left, limiter, rule
from tables import expect_error

from ratelimit_mw.keys.features import INVALID


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    """Return the methods of a limiter, blocking or awaited."""
    return request.param


def test_a_shadow_rule_rejects_no_request(way: Any) -> None:
    """A shadow rule decides with the others. Its decision is in the verdict and causes no delay."""
    rate = limiter(rule("1/minute", "shadow", mode="shadow"), rule("3/minute", "real"))
    verdicts = [way(rate).hit(ANN) for _ in range(4)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
    assert [[d.allowed for d in verdict.decisions] for verdict in verdicts[1:]] == [[False, True]] * 2 + [
        [False, False]
    ]
    assert [d.shadow for d in verdicts[0].decisions] == [True, False]
    assert [d.rule for d in verdicts[3].rejected_by] == ["real"]
    assert verdicts[1].retry_after == 0.0


def test_limits_by_key_and_by_feature(way: Any) -> None:
    """Limits of a single client take precedence over those of its plan or group, and these over the rule's."""
    rate = limiter(
        rule(
            "1/minute",
            key=["user|ip"],
            per_key={"vip": ["100/minute"], "192.0.2.9": "7/minute", "42": "8/minute"},
            per={"plan": {"free": "2/minute", "pro": ["30/minute", "300/hour"]}, "group": {"staff": "9/minute"}},
        )
    )
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"user": "vip", "plan": "free"}, ["100/minute"]),
        ({"user": "ann", "plan": "free"}, ["2/minute"]),
        ({"user": "ann", "plan": "pro", "group": "staff"}, ["30/minute", "300/hour"]),
        ({"user": "ann", "plan": "gold", "group": "staff"}, ["9/minute"]),
        ({"user": "ann", "plan": INVALID}, ["1/minute"]),
        ({"user": "ann", "plan": None, "group": ""}, ["1/minute"]),
        ({"ip": "192.0.2.9"}, ["7/minute"]),
        ({"user": "", "ip": "192.0.2.9"}, ["7/minute"]),
        ({"user": 42}, ["8/minute"]),
        ({}, ["1/minute"]),
    ]
    results = [[str(d.quota) for d in way(rate).peek(features).decisions] for features, _ in cases]
    assert results == [quotas for _, quotas in cases]


def test_an_invalid_feature_has_the_smallest_limits(way: Any) -> None:
    """A client that makes a feature invalid gains no limit of a higher plan, and evades none of a lower plan."""
    plans = {"pro": "900/minute", "free": ["9/second", "20/minute"], "team": "30/minute"}
    for limits, per, expected in (
        ("1000/minute", {"plan": plans}, ["9/second", "20/minute"]),
        ("10/minute", {"plan": plans}, ["10/minute"]),
        ("1000/minute", {"group": {"staff": "7/minute"}, "plan": plans}, ["7/minute"]),
        ("1000/minute", {"plan": plans, "group": {"staff": "7/minute"}}, ["7/minute"]),
        ("9 concurrent", {"plan": {"a": "3 concurrent", "b": "2 concurrent"}}, ["2 concurrent"]),
    ):
        rate = limiter(rule(limits, per=per))
        features = {**ANN, "plan": INVALID, "group": "staff"}
        assert [str(d.quota) for d in way(rate).peek(features).decisions] == expected
    rate = limiter(rule("9/minute", key="user", per_key={"mallory": "1/minute", "vip": "99/minute"}))
    assert [d.limit for d in way(rate).peek({"user": INVALID}).decisions] == [1]


def test_a_new_plan_keeps_the_consumed_cost(way: Any) -> None:
    """Limits of one period share a count, so an upgrade adds the difference and a downgrade does not reset."""
    rate = limiter(rule("1/minute", key=["user"], per={"plan": {"free": "2/minute", "pro": "5/minute"}}))
    assert [way(rate).hit({"user": "ann", "plan": "free"}).allowed for _ in range(3)] == [True, True, False]
    assert [way(rate).hit({"user": "ann", "plan": "pro"}).allowed for _ in range(4)] == [True, True, True, False]
    assert not way(rate).hit({"user": "ann", "plan": "free"})


@pytest.mark.parametrize("limits", ["2/minute", "2/minute; 9/hour"])
def test_a_missing_key_skips_the_rule_or_rejects(way: Any, limits: str) -> None:
    """Without a user the rule does not apply or rejects permanently. A shadow rule does neither."""
    features = {"ip": "192.0.2.7"}
    assert way(limiter(rule(limits, key=["user"]))).hit(features).rules == ()
    rejecting = rule(limits, key=["user"], when_missing="reject")
    verdict = way(limiter(rule("9/minute", "first"), rejecting)).hit(features)
    assert (verdict.allowed, verdict.retry_after, verdict.rules) == (False, None, ("r",))
    assert [d.limit for d in verdict.decisions] == [quota.amount for quota in rejecting.quotas]
    assert way(limiter(rejecting)).hit({"user": "ann"}).allowed
    shadow = rule(limits, key=["user"], when_missing="reject", mode="shadow")
    assert way(limiter(shadow)).hit(features).rules == ()


def test_a_rejection_for_a_missing_key_consumes_nothing(way: Any) -> None:
    """All or nothing applies to it, too, and the refund is empty."""
    rate = limiter(rule("9/minute", "first"), rule(key=["user"], when_missing="reject"))
    verdict = way(rate).hit({"ip": "192.0.2.7"})
    way(rate).refund(verdict)
    assert left(rate, {"ip": "192.0.2.7", "user": "ann"}) == [9, 2]


def test_costs_are_numbers_or_functions(way: Any) -> None:
    """A cost is that of the rule, a function of the features, or the argument of ``hit``, which takes precedence."""
    rate = limiter(
        rule("100/minute", "fixed", cost=3), rule("100/minute", "function", cost=lambda features: len(features["user"]))
    )
    way(rate).hit({**ANN, "user": "seven77"})
    assert left(rate) == [97, 93]
    way(rate).hit(ANN, cost=10)
    assert left(rate) == [87, 83]


@pytest.mark.parametrize("limits", ["5/minute", "5/minute; 9/hour"])
@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 10**12 + 1])
def test_an_invalid_cost_is_an_error(way: Any, limits: str, cost: Any) -> None:
    """The cost comes from ``hit``, from ``settle`` or from a function."""
    rate = limiter(rule(limits))
    verdict = rate.hit(ANN)
    calls: list[Callable[[], Any]] = [
        lambda: way(rate).hit(ANN, cost=cost),
        lambda: way(rate).peek(ANN, cost=cost),
        lambda: way(rate).settle(verdict, cost),
        lambda: verdict.settle(cost),
        lambda: way(limiter(rule(limits, cost=lambda features: cost))).hit(ANN),
    ]
    for call in calls:
        expect_error("expected a cost as a whole number", call)
    expect_error(f"^rule {rate.rules.rules[0].name!r}: cost: expected a cost", calls[-1])
    assert left(rate)[0] == 4


def test_a_queue_returns_the_delay(way: Any) -> None:
    """``delay`` is the longest delay of the decisions. Rejected and shadow decisions cause no delay."""
    queue = {"name": "leaky-bucket", "mode": "queue"}
    rate = limiter(
        rule("60/minute burst 3", "a", algorithm=queue),
        rule("30/minute burst 9", "b", algorithm=queue),
        rule("1/hour burst 9", "c", algorithm=queue, mode="shadow"),
    )
    assert [way(rate).hit(ANN).delay for _ in range(4)] == [0.0, 2.0, 4.0, 0.0]
