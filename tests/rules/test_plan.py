"""The limiter applies shadow rules, plans, missing keys, queues, and costs, of which a feature may be an estimate."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from limiter_ways import ANN, WAYS, left, limiter, rule
from tables import expect_error

from ratelimit_mw import INVALID, FeatureTypeError, Limiter, RateLimitExceeded
from ratelimit_mw.testing import ManualClock


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
    """A cost is that of the rule, a function or one of the features, or that of ``hit``, which takes precedence."""
    costs = {"fixed": 3, "function": lambda features: len(features["user"]), "feature": TOKENS}
    rate = limiter(*(rule("100/minute", name, cost=cost) for name, cost in costs.items()))
    way(rate).hit({**ANN, "user": "seven77", TOKENS: 50})
    assert left(rate) == [97, 93, 50]
    way(rate).hit({**ANN, TOKENS: 50}, cost=10)
    assert left(rate) == [87, 83, 40]


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


TOKENS = "json:max_tokens"
MOST = 10**12


def consumed(cost: str, value: Any, limits: str = "1000000000000/hour", name: str = TOKENS) -> int:
    """Return what one request with this value consumes."""
    rate = limiter(rule(limits, cost=cost))
    assert rate.hit({**ANN, name: value})
    return rate.peek(ANN, cost=0).decisions[0].limit - left(rate)[0]


def test_an_estimate_is_a_number() -> None:
    """Fractions are rounded up, and no number is too large."""
    for value, cost in (
        (150, 150),
        ("150", 150),
        (" 150 ", 150),
        ("+150", 150),
        ("1_500", 1500),
        ("٣", 3),
        (b"150", 150),
        (12.0, 12),
        (12.1, 13),
        ("12.1", 13),
        (Decimal("0.5"), 1),
        ("1e3", 1000),
        ("1e-9999999", 1),
        (MOST, MOST),
        (MOST + 1, MOST),
        (10**4000, MOST),
        ("9" * 60_000, MOST),
        ("1e9999999", MOST),
        ("1e99999999999999999999", MOST),
        (math.inf, MOST),
        ("Infinity", MOST),
    ):
        assert consumed(TOKENS, value) == cost


NO_NUMBERS = [
    0,
    "0",
    0.0,
    -1,
    "-1",
    "-0.5",
    -math.inf,
    "-inf",
    math.nan,
    "nan",
    "sNaN",
    True,
    False,
    "true",
    "many",
    "",
]
NO_NUMBERS += ["-1e99999999999999999999", "1,000", "0x10", "12 tokens", None]


def test_anything_else_has_the_default_cost() -> None:
    """No client is admitted for nothing. Without a number in the rule, a request costs 1."""
    for value in NO_NUMBERS:
        for cost, expected in ((TOKENS, 1), (f"{TOKENS}|500", 500), (f" {TOKENS} | 500 ", 500)):
            assert consumed(cost, value) == expected


def test_the_first_feature_that_is_present_counts() -> None:
    """The names of two versions of an API may be alternatives, as in a key."""
    rate = limiter(rule("1000/hour", cost="json:max_completion_tokens|json:max_tokens|100"))
    for features in ({"json:max_tokens": 7}, {"json:max_tokens": 7, "json:max_completion_tokens": 30}, {}):
        rate.hit({**ANN, **features})
    assert left(rate) == [1000 - 7 - 30 - 100]


def test_an_invalid_estimate_costs_the_most() -> None:
    """It may be any number: the application may read another one of two fields, or a body that is too long here."""
    assert consumed(f"{TOKENS}|5", INVALID, "1000/hour") == 1000


def test_an_estimate_is_held_at_each_limit(way: Any) -> None:
    """An estimate above a limit passes when all of the limit is left, so it is not rejected forever. A slot is one."""
    limits = "1000/minute; 5000/hour; 3 concurrent"
    rate = limiter(rule(limits, cost=TOKENS, algorithm="fixed-window"))
    verdict = way(rate).hit({**ANN, TOKENS: MOST})
    assert verdict
    assert left(rate) == [0, 0, 2]
    rejected = way(rate).hit({**ANN, TOKENS: 10**30})
    assert not rejected
    assert rejected.retry_after is not None
    way(rate).settle(verdict, 20)
    assert left(rate) == [980, 4980, 2]


def test_a_held_estimate_passes_after_its_wait(way: Any) -> None:
    """The wait is exact, as for any cost."""
    clock = ManualClock(1_000_000.0)
    rate = Limiter([rule("100/minute burst 50", cost=TOKENS, algorithm="token-bucket")], clock=clock)
    assert way(rate).hit({**ANN, TOKENS: 1})
    rejected = way(rate).hit({**ANN, TOKENS: 10**6})
    clock.advance(rejected.retry_after)
    assert way(rate).hit({**ANN, TOKENS: 10**6})


def test_what_is_settled_beyond_the_limit_is_a_debt(way: Any) -> None:
    """A client that states too little is rejected afterwards, until its debt has left the window."""
    clock = ManualClock(1_000_000.0)
    rate = Limiter([rule("100/minute", cost=TOKENS, algorithm="gcra")], clock=clock)
    way(rate).settle(way(rate).hit({**ANN, TOKENS: 1}), 300)
    assert left(rate) == [0]
    assert way(rate).hit({**ANN, TOKENS: 1}).retry_after == pytest.approx(120.6)
    clock.advance(120)
    assert not way(rate).hit({**ANN, TOKENS: 1})
    clock.advance(1)
    assert way(rate).hit({**ANN, TOKENS: 1})


def test_limits_of_single_clients_hold_estimates(way: Any) -> None:
    """The limit that a client has, from a table or a function, is the one that holds its estimate."""
    features = {**ANN, TOKENS: 10**6}
    for options in ({"per": {"user": {"ann": "70/minute"}}}, {"limits": lambda user: "70/minute"}):
        rate = limiter(rule(**{"limits": "1000/minute", "cost": TOKENS, **options}))
        assert way(rate).hit(features).decisions[0].hit[2] == 70


def test_an_estimate_is_a_capture_of_the_path() -> None:
    """Any feature of the rule may be its cost."""
    rate = limiter(rule("100/minute", match={"path": "/pages/{count}"}, cost="path:count"))
    rate.hit({**ANN, "path": "/pages/30"})
    assert rate.peek({**ANN, "path": "/pages/1"}, cost=0).decisions[0].remaining == 70


def test_an_estimate_may_be_an_attribute(way: Any) -> None:
    """Your own feature may be an object. A value that is no text and no number is your mistake, as in a key."""
    rate = limiter(rule("100/minute", cost="job.pages", key=["ip"]))
    assert way(rate).hit({**ANN, "job": {"pages": 30}})
    assert left(rate) == [70]
    with pytest.raises(FeatureTypeError, match=r"the feature 'job\.pages' is of type list"):
        way(rate).hit({**ANN, "job": {"pages": [1]}})


def test_messages_have_the_unit() -> None:
    """A decision and the error of a rejection show what is counted."""
    rate = limiter(rule("5/minute; 2 concurrent", "tokens", unit="tokens"), rule("9/hour", "requests"))
    assert [decision.unit for decision in rate.hit(ANN, cost=1).decisions] == ["tokens", "tokens", "requests"]
    with pytest.raises(RateLimitExceeded, match=r"^rejected by tokens \(5 tokens/minute\), tokens \(2 concurrent\): "):
        rate.hit(ANN, cost=7).raise_for_limit()


def test_every_option_has_its_text_in_a_rule() -> None:
    """A rule can be written again from its ``repr``."""
    shown = "Rule(limits='5/minute', cost='json:n|5', unit='tokens')"
    assert repr(rule("5/minute", None, cost="json:n|5", unit="tokens")) == shown
