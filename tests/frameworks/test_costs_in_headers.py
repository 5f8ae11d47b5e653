"""``cost_from``, wherever the rule stands: a header of the response has the true cost, which is settled at its end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from shared_store import SharedStore
from sites import CLIENT, NOW, Build, Reply, Site, act
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.testing import ManualClock, limits_off

HEADER = "x-tokens-used"
TOKENS: Any = {"cost": "header:x-estimate|40", "cost_from": {"header": "X-Tokens-Used"}, "unit": "tokens"}
REMOVED: Any = {**TOKENS, "cost_from": {"header": HEADER, "remove": True}}
RULE: Any = {"name": "login", "limits": "1000/minute"}


def send(served: Site, query: str) -> tuple[Any, int]:
    """Return the headers of one response, and what is left of 1,000 tokens a minute."""
    served.clock.advance(120)  # two windows: nothing of an earlier request is left
    return served.call(path=f"/?{query}").headers, served.left(user="ann", scope="login")[0]


def test_the_true_cost_is_settled(place: Build) -> None:
    """The estimate is in the headers. The header with the true cost stays, and a stream is settled at its end."""
    served = place({**RULE, **TOKENS}, act, store=SharedStore())
    for query, used, expected in [
        ("used=150", "150", 850),
        ("used=0", "0", 1000),
        ("status=500&used=12.5", "12.5", 987),
        ("used=1200", "1200", 0),
        ("stream&used=7", "7", 993),
        ("", "", 960),
    ]:
        headers, left = send(served, query)
        assert (headers.get(HEADER, ""), headers["x-ratelimit-remaining"], left) == (used, "960", expected), query
        assert 'q=1000;qu="tokens";w=60' in headers["ratelimit-policy"]


@each("query", ["used=150", "stream&used=150"])
def test_the_header_is_removed(place: Build, query: str) -> None:
    """With ``remove`` the client does not receive it. Other headers stay."""
    headers, left = send(place({**RULE, **REMOVED}, act, store=SharedStore()), query)
    assert (HEADER in headers, headers["x-other"], left) == (False, "kept", 850)


def test_a_response_that_does_not_count_has_no_cost(place: Build) -> None:
    """The outcome takes precedence over the header."""
    served = place({**RULE, **TOKENS, "count_unless": {"status": "4xx"}}, act, store=SharedStore())
    assert send(served, "status=404&used=150")[1] == 1000
    assert send(served, "used=150")[1] == 850


@each("used", ["many", "-1", "nan", "inf", "5, 7", "None"])
def test_a_header_without_a_number_keeps_the_estimate(site: Build, used: str, caplog: pytest.LogCaptureFixture) -> None:
    """One log message names the rule and the header, and not the value."""
    warn.cache_clear()
    caplog.clear()
    served = site(Rule(**RULE, **TOKENS), act, store=SharedStore())
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert [send(served, f"used={used}")[1] for _ in range(2)] == [960, 960]
    assert [text for text in caplog.messages if HEADER in text] == [
        "rule login: the header x-tokens-used is not a number from 0, so its responses keep their estimated cost"
    ]


def test_while_limits_are_off_nothing_is_settled(site: Build) -> None:
    """A test without limits reads the same response as a client, without the removed header."""
    served = site(Rule(**RULE, **REMOVED), act)
    with limits_off():
        headers = served.call(path="/?used=150").headers
    assert (HEADER in headers, headers["x-other"]) == (False, "kept")


def test_outer_limits_settle_by_a_header_that_inner_ones_remove(site: Build) -> None:
    """Two limiters around one application have the same true cost: the largest of several lines."""
    outer = Limiter([Rule(**{**RULE, "name": "outer"}, **REMOVED)], clock=ManualClock(NOW))
    served = site(Rule(**RULE, **REMOVED), Reply(headers=[(HEADER, "20"), ("X-Tokens-Used", "150")]), outer=outer)
    assert HEADER not in served.call().headers
    left = [limiter.peek({"ip": CLIENT}, cost=0).decisions[0].remaining for limiter in (outer, served.limiter)]
    assert left == [850, 850]
