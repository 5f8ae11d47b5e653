"""The rejection cache: a key that the store has just rejected is rejected without a call, and not for longer."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.limiter.remote import cache
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock, limits_timed_by

WHO = {"ip": "192.0.2.7"}
COUNTING = {"name": "sliding-window-log", "count_rejected": True}


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    """The time of this process. The limiters get no clock of their own, because then nothing is cached."""
    clock = ManualClock(1_000_000.0)
    with limits_timed_by(clock):
        yield clock


def setup(rules: list[Rule]) -> tuple[Limiter, SharedStore]:
    store = SharedStore()
    return Limiter(rules, store, settings=Settings(rejection_cache=1)), store


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
    """A smaller cost may fit, so the store is asked. A cost beyond the limit does not get the wait of a smaller one."""
    limiter, store = setup([Rule(name="api", limits="5/hour")])
    limiter.hit(WHO, cost=3)
    assert [limiter.hit(WHO, cost=cost).retry_after is None for cost in (3, 4, 6)] == [False, False, True]
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
    rules = [Rule(name="api", limits="1/hour"), Rule(name="log", limits="1/day", algorithm=COUNTING, key=["user"])]
    limiter, store = setup(rules)
    for user in ("ann", "bob", "bob", "bob"):
        limiter.hit({**WHO, "user": user})
    assert store.calls == 4


def test_a_limit_of_another_plan_is_not_rejected_by_the_cache() -> None:
    """Two limits may count under one key: one of them rejects, the other allows."""
    limiter, _ = setup([Rule(name="api", limits="1/hour", per={"plan": {"pro": ["9/hour"]}})])
    assert [limiter.hit({**WHO, "plan": plan}).allowed for plan in ("free", "free", "pro")] == [True, False, True]


def test_an_allowed_hit_updates_the_cached_remaining() -> None:
    """After a smaller request, the next rejection of the larger one has the current remaining."""
    limiter, _ = setup([Rule(name="api", limits="10/hour")])
    assert limiter.hit(WHO, cost=4)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 6
    assert limiter.hit(WHO, cost=3)
    assert limiter.hit(WHO, cost=7).decisions[0].remaining == 3


@each(
    "free",
    [
        lambda limiter, consumed: limiter.reset("api", WHO),
        lambda limiter, consumed: limiter.refund(consumed),
        lambda limiter, consumed: limiter.settle(consumed, 0),
    ],
)
def test_reset_refund_and_settle_clear_the_key(way: Any, free: Callable[[Any, Verdict], None]) -> None:
    """The next request asks the store."""
    limiter, _ = setup([Rule(name="api", limits="1/hour")])
    consumed = limiter.hit(WHO)
    assert not limiter.hit(WHO)
    free(way(limiter), consumed)
    assert limiter.hit(WHO)


@each(
    ("rule", "cost", "options"),
    [
        ({"algorithm": COUNTING}, 1, {}),
        ({"count_when": {"status": 401}}, 1, {}),
        ({"limits": "1 concurrent"}, 1, {}),
        ({"mode": "shadow"}, 1, {}),
        ({}, 2, {}),
        ({}, 1, {"settings": Settings(rejection_cache=0)}),
        ({}, 1, {"clock": ManualClock(1_000_000.0)}),
    ],
)
def test_some_rejections_are_never_cached(rule: Any, cost: int, options: Any) -> None:
    """Rules that count rejections or outcomes, slots, shadow rules, too high costs, no cache, a given clock."""
    store = SharedStore()
    limiter = Limiter([Rule(name="api", **{"limits": "1/hour", **rule})], store, **options)
    for _ in range(4):
        limiter.hit(WHO, cost)
    assert store.calls == 4
    limiter.peek(WHO)
    assert store.calls == 5


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of rejected clients leaves a maximum of entries, the newest among them."""
    monkeypatch.setattr(cache, "_MAX_KEYS", 100)
    limiter, store = setup([Rule(name="api", limits="1/hour")])
    for i in range(240):
        limiter.hit({"ip": str(i)})
        limiter.hit({"ip": str(i)})
    calls = store.calls
    for i in reversed(range(240)):
        limiter.hit({"ip": str(i)})
    assert 140 <= store.calls - calls <= 190
    assert not limiter.hit({"ip": "0"})
