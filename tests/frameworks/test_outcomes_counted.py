"""``count_when`` and ``count_unless``, wherever the rule stands: what counts, and what the headers show."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from shared_store import SharedStore
from sites import CLIENT, NOW, Build, Reply, Site, act
from tables import each

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.http.warnings import warn
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock, limits_off

FAILED: Any = {"count_when": {"status": [401, 500]}}
EXCEPT: Any = {"count_unless": {"status": "2xx"}}
MARKED: Any = {"count_when": {"marked": True}}
outcomes = each("options", [FAILED, EXCEPT, MARKED])


def serve(place: Build, options: Any) -> Site:
    return place({"name": "login", "limits": "9/minute", **options}, act, store=SharedStore())  # type: ignore[no-any-return]


def send(served: Site, query: str, method: str = "GET") -> tuple[int, str | None, int]:
    """Return the status of one request, its header, and what is left of nine requests a minute."""
    served.clock.advance(120)  # two windows: nothing of an earlier request is left
    response = served.call(method, f"/?{query}")
    return response.status_code, response.headers.get("x-ratelimit-remaining"), left_of(served)


def left_of(served: Site) -> int:
    return served.left(user="ann", scope="login")[0]


@outcomes
def test_the_status_or_the_mark_counts(place: Build, options: Any) -> None:
    """The headers show what is left after the outcome, even for a HEAD request and a stream."""
    served = serve(place, options)
    for query in ("", "status=401", "stream", "stream&status=401", "mark", "mark&status=401"):
        for method in ("GET", "HEAD", "POST") if "stream" not in query else ("GET",):
            counts = "mark" in query or (options is not MARKED and "401" in query)
            expected = (401 if "401" in query else 200, *(("8", 8) if counts else ("9", 9)))
            assert send(served, query, method) == expected, (query, method)


@outcomes
def test_a_mark_in_the_middle_of_a_stream_counts(place: Build, options: Any) -> None:
    """The response has started, so its headers do not show the mark."""
    assert send(serve(place, options), "late")[2] == 8


@outcomes
def test_an_error_counts_as_500(place: Build, options: Any) -> None:
    """A mark before the error counts, too. Without one, only marked requests are not counted."""
    served = serve(place, options)
    assert send(served, "mark&fail")[::2] == (500, 8)
    assert send(served, "fail")[::2] == (500, 9 if options is MARKED else 8)


def test_a_late_mark_is_reserved_until_the_end_of_the_stream(site: Build) -> None:
    """With ``marked = true`` the cost is not returned before the view has had its chance to mark."""
    store = SharedStore()
    corrections: list[str] = []
    correct = store.correct

    def note(*arguments: Any) -> list[int]:
        corrections.extend(change.limit.rule for change in arguments[0])
        return correct(*arguments)

    store.correct = note  # type: ignore[method-assign]
    rule = Rule(name="login", limits="9/minute", **MARKED)
    served = site(Limiter([rule], store, settings=Settings(fleet_size=1)), act)
    assert [served.call(path=f"/?{query}").status_code for query in ("late", "stream")] == [200, 200]
    assert corrections.count("login") == 1


# -- cost_from: a header of the response has the true cost -----------------------------------------------------


HEADER = "x-tokens-used"
TOKENS: Any = {"cost": "header:x-estimate|40", "cost_from": {"header": "X-Tokens-Used"}, "unit": "tokens"}
REMOVED: Any = {**TOKENS, "cost_from": {"header": HEADER, "remove": True}}
TOKENS_RULE: Any = {"name": "login", "limits": "1000/minute"}


def request_cost(served: Site, query: str) -> tuple[Any, int]:
    """Return the headers of one response, and what is left of 1,000 tokens a minute."""
    served.clock.advance(120)  # two windows: nothing of an earlier request is left
    return served.call(path=f"/?{query}").headers, served.left(user="ann", scope="login")[0]


def test_the_true_cost_is_settled(place: Build) -> None:
    """The estimate is in the headers. The header with the true cost stays, and a stream is settled at its end."""
    served = place({**TOKENS_RULE, **TOKENS}, act, store=SharedStore())
    for query, used, expected in [
        ("used=150", "150", 850),
        ("used=0", "0", 1000),
        ("status=500&used=12.5", "12.5", 987),
        ("used=1200", "1200", 0),
        ("stream&used=7", "7", 993),
        ("", "", 960),
    ]:
        headers, left = request_cost(served, query)
        assert (headers.get(HEADER, ""), headers["x-ratelimit-remaining"], left) == (used, "960", expected), query
        assert 'q=1000;qu="tokens";w=60' in headers["ratelimit-policy"]


@each("query", ["used=150", "stream&used=150"])
def test_the_header_is_removed(place: Build, query: str) -> None:
    """With ``remove`` the client does not receive it. Other headers stay."""
    headers, left = request_cost(place({**TOKENS_RULE, **REMOVED}, act, store=SharedStore()), query)
    assert (HEADER in headers, headers["x-other"], left) == (False, "kept", 850)


def test_a_response_that_does_not_count_has_no_cost(place: Build) -> None:
    """The outcome takes precedence over the header."""
    served = place({**TOKENS_RULE, **TOKENS, "count_unless": {"status": "4xx"}}, act, store=SharedStore())
    assert request_cost(served, "status=404&used=150")[1] == 1000
    assert request_cost(served, "used=150")[1] == 850


@each("used", ["many", "-1", "nan", "inf", "5, 7", "None"])
def test_a_header_without_a_number_keeps_the_estimate(site: Build, used: str, caplog: pytest.LogCaptureFixture) -> None:
    """One log message names the rule and the header, and not the value."""
    warn.cache_clear()
    caplog.clear()
    served = site(Rule(**TOKENS_RULE, **TOKENS), act, store=SharedStore())
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert [request_cost(served, f"used={used}")[1] for _ in range(2)] == [960, 960]
    assert [text for text in caplog.messages if HEADER in text] == [
        "rule login: the header x-tokens-used is not a number from 0, so its responses keep their estimated cost"
    ]


def test_while_limits_are_off_nothing_is_settled(site: Build) -> None:
    """A test without limits reads the same response as a client, without the removed header."""
    served = site(Rule(**TOKENS_RULE, **REMOVED), act)
    with limits_off():
        headers = served.call(path="/?used=150").headers
    assert (HEADER in headers, headers["x-other"]) == (False, "kept")


def test_outer_limits_settle_by_a_header_that_inner_ones_remove(site: Build) -> None:
    """Two limiters around one application have the same true cost: the largest of several lines."""
    outer = Limiter([Rule(**{**TOKENS_RULE, "name": "outer"}, **REMOVED)], clock=ManualClock(NOW))
    served = site(
        Rule(**TOKENS_RULE, **REMOVED), Reply(headers=[(HEADER, "20"), ("X-Tokens-Used", "150")]), outer=outer
    )
    assert HEADER not in served.call().headers
    left = [limiter.peek({"ip": CLIENT}, cost=0).decisions[0].remaining for limiter in (outer, served.limiter)]
    assert left == [850, 850]
