"""The rejection cache: a key that the store has just rejected is rejected without a call, and not for longer."""

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
    """The time of this process. The limiters get no clock of their own, because then nothing is cached."""
    clock = ManualClock(1_000_000.0)
    with limits_timed_by(clock):
        yield clock


def setup(rules: list[Rule], remember: int = 1) -> tuple[Limiter, SharedStore]:
    store = SharedStore()
    return Limiter(rules, store, settings=Settings(rejection_cache=remember)), store


def test_a_rejected_key_is_rejected_without_a_call(clock: ManualClock) -> None:
    """A flood of rejected requests costs one call per second, and its verdicts count down."""
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


def test_a_rejection_is_never_cached_beyond_retry_after(clock: ManualClock) -> None:
    """At the announced moment the request is allowed."""
    limiter, _ = setup([Rule(name="api", limits="1/500ms", algorithm="gcra")])
    limiter.hit(WHO)
    wait = limiter.hit(WHO).retry_after
    assert wait is not None
    assert wait < 1
    clock.advance(wait)
    assert limiter.hit(WHO)


def test_a_rejection_is_cached_for_its_cost_or_more() -> None:
    """A smaller cost may fit, so the store is asked."""
    limiter, store = setup([Rule(name="api", limits="5/hour")])
    limiter.hit(WHO, cost=3)
    assert not limiter.hit(WHO, cost=3)
    assert not limiter.hit(WHO, cost=4)
    assert store.calls == 2
    assert limiter.hit(WHO, cost=2)


def test_the_longest_wait_of_two_cached_rejections_is_returned() -> None:
    """A client that comes back after the shorter wait would be rejected again."""
    limiter, store = setup([Rule(name="api", limits=["1/500ms", "1/hour"], algorithm="fixed-window")])
    limiter.hit(WHO)
    first, again = limiter.hit(WHO), limiter.hit(WHO)
    assert (again.retry_after, store.calls) == (first.retry_after, 2)


def test_nothing_is_cached_when_one_rejecting_limit_must_be_asked() -> None:
    """The limit that cannot be cached may have the longer wait."""
    rules = [
        Rule(name="api", limits="1/second", algorithm="fixed-window"),
        Rule(name="failures", limits="1/hour", algorithm="fixed-window", count_when={"status": 401}),
    ]
    limiter, store = setup(rules)
    limiter.hit(WHO)
    assert [limiter.hit(WHO).retry_after for _ in range(3)] == [limiter.peek(WHO).retry_after] * 3
    assert store.calls == 5


def test_a_log_that_counts_rejections_sees_each_request() -> None:
    """Even requests that another limit is known to reject."""
    counting = {"name": "sliding-window-log", "count_rejected": True}
    rules = [Rule(name="api", limits="1/hour"), Rule(name="log", limits="1/day", algorithm=counting, key=["user"])]
    limiter, store = setup(rules)
    for user in ("ann", "bob", "bob", "bob"):
        limiter.hit({**WHO, "user": user})
    assert store.calls == 4


def test_a_limit_of_another_plan_is_not_rejected_by_the_cache() -> None:
    """Two limits may count under one key: one of them rejects, the other allows."""
    limiter, _ = setup([Rule(name="api", limits="1/hour", per={"plan": {"pro": ["9/hour"]}})])
    assert [limiter.hit({**WHO, "plan": plan}).allowed for plan in ("free", "free", "pro")] == [True, False, True]


def test_a_cost_beyond_the_limit_has_no_retry_after() -> None:
    """It does not get the wait of the smaller cost that was cached."""
    limiter, store = setup([Rule(name="api", limits="5/hour")])
    limiter.hit(WHO, cost=3)
    assert limiter.hit(WHO, cost=3).retry_after is not None
    assert limiter.hit(WHO, cost=6).retry_after is None
    assert store.calls == 2


def test_an_allowed_hit_updates_the_cached_remaining() -> None:
    """After a smaller request, the next rejection of the larger one has the current remaining."""
    limiter, _ = setup([Rule(name="api", limits="10/hour")])
    assert limiter.hit(WHO, cost=4)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 6
    assert limiter.hit(WHO, cost=3)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 3


def test_a_refund_clears_the_caches_of_all_limiters_in_the_process() -> None:
    """Two limiters at one store: a reset or refund by either frees the key for both."""
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    other = Limiter([Rule(name="api", limits="1/hour")], store)
    consumed = limiter.hit(WHO)
    assert not other.hit(WHO)
    limiter.refund(consumed)
    assert other.hit(WHO)
    assert not other.hit(WHO)
    limiter.reset("api", WHO)
    assert other.hit(WHO)


def test_nothing_is_cached_with_a_given_clock() -> None:
    """With a given clock, the decisions of all stores are equal."""
    store, clock = SharedStore(), ManualClock(1_000_000.0)
    limiter = Limiter([Rule(name="api", limits=["1/hour", "5/day"])], store, clock)
    assert [limiter.hit(WHO).allowed for _ in range(4)] == [True, False, False, False]
    assert len(limiter.hit(WHO).decisions) == 2
    assert store.calls == 5


def test_a_peek_asks_the_store() -> None:
    """A peek returns the state of this moment."""
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    limiter.hit(WHO)
    limiter.hit(WHO)
    assert not limiter.peek(WHO)
    assert store.calls == 3


def test_reset_refund_and_settle_clear_the_key() -> None:
    """The next request asks the store."""
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


def test_some_rejections_are_never_cached() -> None:
    """Logs that count rejections, rules that count by outcome, shadow rules, and costs beyond the limit."""
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


def test_zero_turns_the_cache_off() -> None:
    """With rejection_cache = 0, every request asks the store."""
    limiter, store = setup([Rule(name="api", limits="1/hour")], remember=0)
    for _ in range(4):
        limiter.hit(WHO)
    assert store.calls == 4


@pytest.mark.slow
def test_the_cache_is_bounded() -> None:
    """A flood of rejected clients leaves at most 50,000 entries, the newest among them."""
    limiter, store = setup(
        [Rule(name="api", limits="1/hour"), Rule(name="all", limits="1/day", key=[], when_missing="reject")]
    )
    limiter = Limiter([Rule(name="api", limits="1/hour")], store, settings=Settings())
    for i in range(60_000):
        limiter.hit({"ip": str(i)})
        limiter.hit({"ip": str(i)})
    assert len(limiter.remote.rejections) <= 50_000  # type: ignore[union-attr]
    calls = store.calls
    limiter.hit({"ip": "59999"})
    assert store.calls == calls
