"""Rejections remembered: what the store has just rejected is not asked again, and never rejected for longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock, limits_timed_by

WHO = {"ip": "192.0.2.7"}


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    """What passes in this process; the limiters are given no clock, as one that is given wants to be exact."""
    clock = ManualClock(1_000_000.0)
    with limits_timed_by(clock):
        yield clock


def setup(rules: list[Rule], remember: int = 1_000_000) -> tuple[Limiter, SharedStore]:
    store = SharedStore()
    return Limiter(rules, store, settings=Settings(rejection_cache=remember)), store


def test_a_rejected_key_is_rejected_here(clock: ManualClock) -> None:
    """A flood of rejected requests costs one call a second, and its answers count down."""
    limiter, store = setup(
        [Rule(name="api", limits="2/hour", algorithm="fixed-window"), Rule(name="all", limits="9/h", key=[])]
    )
    for _ in range(3):
        first = limiter.hit(WHO)
    calls = store.calls
    clock.advance(0.4)
    again = limiter.hit(WHO)
    assert asyncio.run(limiter.ahit(WHO)).allowed is False
    assert (again.allowed, store.calls) == (False, calls)
    assert again.rules == ("api",)
    assert first.retry_after is not None
    assert again.retry_after == first.retry_after - 0.4
    assert again.decisions[0].reset_after == first.decisions[0].reset_after - 0.4
    assert again.decisions[0].at == first.decisions[0].at + 0.4
    clock.advance(0.6)
    limiter.hit(WHO)
    assert store.calls == calls + 1


def test_never_for_longer_than_its_retry_after(clock: ManualClock) -> None:
    """At the announced moment the request is allowed again."""
    limiter, _ = setup([Rule(name="api", limits="1/500ms", algorithm="gcra")])
    limiter.hit(WHO)
    wait = limiter.hit(WHO).retry_after
    assert wait is not None
    assert wait < 1
    clock.advance(wait)
    assert limiter.hit(WHO)


def test_only_for_that_cost_or_more() -> None:
    """A smaller request may still fit and is asked for."""
    limiter, store = setup([Rule(name="api", limits="5/hour")])
    limiter.hit(WHO, cost=3)
    assert not limiter.hit(WHO, cost=3)
    assert not limiter.hit(WHO, cost=4)
    assert store.calls == 2
    assert limiter.hit(WHO, cost=2)


def test_of_two_that_reject_the_longer_wait_is_told() -> None:
    """Whichever stands first: who came back at the shorter one's time would be rejected again."""
    limiter, store = setup([Rule(name="api", limits=["1/500ms", "1/hour"], algorithm="fixed-window")])
    limiter.hit(WHO)
    first, again = limiter.hit(WHO), limiter.hit(WHO)
    assert (again.retry_after, store.calls) == (first.retry_after, 2)


def test_where_one_of_two_that_reject_must_be_asked_both_are() -> None:
    """What is not known here may have the longer wait."""
    rules = [
        Rule(name="api", limits="1/second", algorithm="fixed-window"),
        Rule(name="failures", limits="1/hour", algorithm="fixed-window", count_when={"status": 401}),
    ]
    limiter, store = setup(rules)
    limiter.hit(WHO)
    assert [limiter.hit(WHO).retry_after for _ in range(3)] == [limiter.peek(WHO).retry_after] * 3
    assert store.calls == 5


def test_a_log_that_counts_rejections_hears_of_each() -> None:
    """Also of those that another limit of the request is known to reject."""
    counting = {"name": "sliding-window-log", "count_rejected": True}
    rules = [Rule(name="api", limits="1/hour"), Rule(name="log", limits="1/day", algorithm=counting, key=["user"])]
    limiter, store = setup(rules)
    for user in ("ann", "bob", "bob", "bob"):
        limiter.hit({**WHO, "user": user})
    assert store.calls == 4


def test_a_limit_of_another_plan_is_asked() -> None:
    """Two limits may count by one key: what one of them rejects the other may allow."""
    limiter, _ = setup([Rule(name="api", limits="1/hour", per={"plan": {"pro": ["9/hour"]}})])
    assert [limiter.hit({**WHO, "plan": plan}).allowed for plan in ("free", "free", "pro")] == [True, False, True]


def test_what_can_never_fit_has_no_time_to_come_again() -> None:
    """A cost beyond the limit is told so, and not the wait of the smaller one that was rejected before."""
    limiter, store = setup([Rule(name="api", limits="5/hour")])
    limiter.hit(WHO, cost=3)
    assert limiter.hit(WHO, cost=3).retry_after is not None
    assert limiter.hit(WHO, cost=6).retry_after is None
    assert store.calls == 2


def test_what_is_consumed_meanwhile_is_told() -> None:
    """A smaller request passes: the next rejection of the larger one knows what is left now."""
    limiter, _ = setup([Rule(name="api", limits="10/hour")])
    assert limiter.hit(WHO, cost=4)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 6
    assert limiter.hit(WHO, cost=3)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 3


def test_what_one_limiter_gives_back_another_one_sees() -> None:
    """Two limiters of a process at one store: a reset or refund by either frees the key for both."""
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    other = Limiter([Rule(name="api", limits="1/hour")], store)
    consumed = limiter.hit(WHO)
    assert not other.hit(WHO)
    limiter.refund(consumed)
    assert other.hit(WHO)
    assert not other.hit(WHO)
    limiter.reset("api", WHO)
    assert other.hit(WHO)


def test_with_a_clock_that_is_given_every_request_asks() -> None:
    """It rules on every store, and the answers are the same on all of them."""
    store, clock = SharedStore(), ManualClock(1_000_000.0)
    limiter = Limiter([Rule(name="api", limits=["1/hour", "5/day"])], store, clock)
    assert [limiter.hit(WHO).allowed for _ in range(4)] == [True, False, False, False]
    assert len(limiter.hit(WHO).decisions) == 2
    assert store.calls == 5


def test_a_peek_asks() -> None:
    """A look is the truth of this moment."""
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    limiter.hit(WHO)
    limiter.hit(WHO)
    assert not limiter.peek(WHO)
    assert store.calls == 3


def test_reset_refund_and_settling_clear_it() -> None:
    """What this process gives back it also believes."""
    for free in (
        lambda limiter, consumed: limiter.reset("api", WHO),
        lambda limiter, consumed: asyncio.run(limiter.areset("api", WHO)),
        lambda limiter, consumed: limiter.refund(consumed),
        lambda limiter, consumed: asyncio.run(limiter.arefund(consumed)),
        lambda limiter, consumed: limiter.settle(consumed, 0),
    ):
        limiter, _ = setup([Rule(name="api", limits="1/hour")])
        consumed = limiter.hit(WHO)
        assert not limiter.hit(WHO)
        free(limiter, consumed)
        assert limiter.hit(WHO)


def test_what_may_change_elsewhere_is_asked_each_time() -> None:
    """Logs that count rejections, rules that count by outcome and shadow rules are never remembered; nor is never."""
    counting = {"name": "sliding-window-log", "count_rejected": True}
    for rule in (
        Rule(name="api", limits="1/hour", algorithm=counting),
        Rule(name="api", limits="1/hour", count_when={"status": 401}),
        Rule(name="api", limits="1/hour", mode="shadow"),
    ):
        limiter, store = setup([rule])
        for _ in range(4):
            limiter.hit(WHO)
        assert store.calls == 4
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    for _ in range(3):
        limiter.hit(WHO, cost=2)
    assert store.calls == 3


def test_zero_turns_it_off() -> None:
    """``rejection_cache = 0``: every request asks."""
    limiter, store = setup([Rule(name="api", limits="1/hour")], remember=0)
    for _ in range(4):
        limiter.hit(WHO)
    assert store.calls == 4


def test_the_memory_is_bounded() -> None:
    """A flood of rejected strangers leaves at most 50,000 remembered, and the newest are among them."""
    limiter, store = setup(
        [Rule(name="api", limits="1/hour"), Rule(name="all", limits="1/day", key=[], when_missing="reject")]
    )
    limiter = Limiter([Rule(name="api", limits="1/hour")], store, settings=Settings())
    for i in range(60_000):
        limiter.hit({"ip": str(i)})
        limiter.hit({"ip": str(i)})
    assert len(limiter._chain._young) + len(limiter._chain._old) <= 50_000
    calls = store.calls
    limiter.hit({"ip": "59999"})
    assert store.calls == calls
