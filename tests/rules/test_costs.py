"""A cost is read from a feature: an estimate that a client may choose is kept between 1 and the size of each limit."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from limiter_ways import ANN, WAYS, left, limiter, rule

from ratelimit_mw import INVALID, FeatureTypeError, Limiter, RateLimitExceeded
from ratelimit_mw.testing import ManualClock

TOKENS = "json:max_tokens"
MOST = 10**12


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    """Return the methods of a limiter, blocking or awaited."""
    return request.param


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
    for options in ({"per": {"user": {"ann": "70/minute"}}}, {"per_key": lambda _: "70/minute"}):
        rate = limiter(rule("1000/minute", cost=TOKENS, **options))
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


def test_the_cost_of_a_call_takes_precedence(way: Any) -> None:
    """``hit(features, cost=3)`` consumes 3, without the feature."""
    rate = limiter(rule("100/minute", cost=TOKENS))
    way(rate).hit({**ANN, TOKENS: 50}, cost=3)
    assert left(rate) == [97]


def test_messages_have_the_unit() -> None:
    """A decision and the error of a rejection show what is counted."""
    rate = limiter(rule("5/minute; 2 concurrent", "tokens", unit="tokens"), rule("9/hour", "requests"))
    assert [decision.unit for decision in rate.hit(ANN, cost=1).decisions] == ["tokens", "tokens", "requests"]
    with pytest.raises(RateLimitExceeded, match=r"^rejected by tokens \(5 tokens/minute\), tokens \(2 concurrent\): "):
        rate.hit(ANN, cost=7).raise_for_limit()


def test_every_option_has_its_text_in_a_rule() -> None:
    """A rule can be written again from its ``repr``."""
    shown = "Rule(limits='5/minute', cost='json:n|5', cost_from={'header': 'X-Used'}, unit='tokens')"
    assert repr(rule("5/minute", None, cost="json:n|5", cost_from={"header": "X-Used"}, unit="tokens")) == shown
