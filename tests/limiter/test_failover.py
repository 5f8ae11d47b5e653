"""A shared store that is away: the policy of each rule, no calls while the breaker is open, and the recovery."""

import asyncio
import logging
import re
from typing import Any

import pytest
from calls import on_loop
from failover_kit import WHO, limiter, rule
from servers import wait_for
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.limiter.remote.breaker import Breaker
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock


def test_local_counts_one_part_of_the_limit_per_process(way: Any, shared: SharedStore) -> None:
    """With fleet_size = 4, each process allows a quarter of the limit, rounded up."""
    shared.down = True
    every = [rule("local", limits) for limits in ("8/minute", "9/minute", "2/minute")]
    every.append(Rule(name="api", limits="60/minute burst 5", algorithm="token-bucket", on_store_error="local"))
    for each_rule, allowed in zip(every, (2, 3, 1, 2), strict=True):
        mine = limiter(shared, [each_rule], fleet_size=4)
        assert [way(mine).hit(WHO).allowed for _ in range(allowed + 1)] == [True] * allowed + [False]


@each("algorithm", ["fixed-window", "sliding-window", "gcra", "tiered-window", "leaky-bucket"])
def test_local_counting_starts_from_the_last_decision(way: Any, algorithm: str) -> None:
    """Each of two processes has half of what the store had left; later the whole quota is fresh."""
    store, clock = SharedStore(), ManualClock(1_000_000.0)
    mine = Limiter([Rule(name="api", limits="10/minute", algorithm=algorithm)], store, clock, Settings(fleet_size=2))
    for _ in range(7):
        way(mine).hit(WHO)
    store.down = True
    assert [way(mine).hit(WHO).allowed for _ in range(3)] == [True, True, False]
    clock.advance(180)
    assert [way(mine).hit(WHO).allowed for _ in range(6)] == [True] * 5 + [False]


def test_a_decision_that_is_over_is_forgotten(shared: SharedStore, clock: ManualClock) -> None:
    """Each process has its share of a quota that is fresh when the outage begins."""
    mine = Limiter([rule(None)], shared, clock, Settings(fleet_size=2, rejection_cache=0))
    assert [mine.hit(WHO).allowed for _ in range(5)] == [True] * 4 + [False]
    clock.advance(60)
    shared.down = True
    assert [mine.hit(WHO).allowed for _ in range(3)] == [True, True, False]


def test_a_rejection_by_the_store_holds_without_it(way: Any, shared: SharedStore, clock: ManualClock) -> None:
    """The processes allow nothing for a key that the store rejected."""
    settings = Settings(fleet_size=5, rejection_cache=0)
    other, mine = (Limiter([rule(None)], shared, clock, settings) for _ in range(2))
    for _ in range(4):
        other.hit(WHO)
    assert not way(mine).hit(WHO)
    shared.down = True
    verdict = way(mine).hit(WHO)
    assert (verdict.allowed, verdict.decisions[0].local, verdict.retry_after) == (False, True, 60.0)
    clock.advance(60)
    assert way(mine).hit(WHO)


def test_a_second_outage_gives_no_second_share(shared: SharedStore) -> None:
    """The counts of a process stay when the store was reachable in between. A key that was looked at has its share."""
    mine = limiter(shared, [rule(None, "10/hour")], fleet_size=2)
    mine.peek(WHO)
    allowed = []
    for shared.down in (True, False, True, False, True):
        allowed.append(sum(mine.hit(WHO, 1 if shared.down else 0).allowed for _ in range(9)))
    assert allowed == [5, 9, 0, 9, 0]


def test_the_memory_of_the_fallback_is_bounded(shared: SharedStore) -> None:
    """``fallback_keys`` bounds the keys that are remembered, and those that are counted."""
    settings = Settings(fleet_size=1, fallback_keys=10, rejection_cache=0)
    mine = Limiter([rule(None, "2/hour")], shared, ManualClock(1_000_000.0), settings)
    clients = [{"ip": f"192.0.2.{i}"} for i in range(50)]
    for features in clients:
        mine.hit(features, 2)
    shared.down = True
    assert sum(mine.hit(features).allowed for features in reversed(clients)) >= 40
    assert len(mine.remote.fallback.local) == 10  # type: ignore[union-attr]


def test_allow_leaves_the_limit_out(way: Any, shared: SharedStore) -> None:
    """A rule with "allow" has no decision while the store is unreachable; a rule with "local" still limits."""
    mine = limiter(shared, [rule("allow", "1/minute"), rule("local", "3/minute", "other")])
    shared.down = True
    verdicts = [way(mine).hit(WHO) for _ in range(4)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 3 + [False]
    assert verdicts[0].rules == ("other",)


def test_deny_rejects_with_503(way: Any, shared: SharedStore) -> None:
    """The verdict is unavailable, with a Retry-After of one second."""
    mine = limiter(shared, [rule("local"), rule("deny", name="strict")])
    shared.down = True
    verdict = way(mine).hit(WHO)
    assert (verdict.allowed, verdict.unavailable, verdict.retry_after, verdict.status) == (False, True, 1.0, 503)
    assert verdict.rules == ("strict",)
    assert verdict.decisions[0].local


def test_an_open_breaker_stops_calls(way: Any, monkeypatch: pytest.MonkeyPatch, shared: SharedStore) -> None:
    """The store is called three times, and never again until a probe is due."""
    monkeypatch.setattr(Breaker, "takes_probe", lambda *_: False)
    mine = limiter(shared, [rule("allow")])
    shared.down = True
    for _ in range(50):
        assert way(mine).hit(WHO)
    assert shared.calls == 3


def test_a_local_hit_is_refunded_locally(way: Any, shared: SharedStore) -> None:
    """A refund goes to the store that counted the hit."""
    mine = limiter(shared, [rule("local", "1/minute")])
    shared.down = True
    verdict = way(mine).hit(WHO)
    assert not way(mine).hit(WHO)
    mine.refund(verdict)
    again = way(mine).hit(WHO)
    assert again
    way(mine).refund(again)
    assert way(mine).hit(WHO)


def test_a_refund_during_an_outage_raises_nothing(way: Any, shared: SharedStore) -> None:
    """When the store fails after the hit, the cost stays consumed."""
    mine = limiter(shared, [rule("local", "1/minute")])
    verdict = mine.hit(WHO)
    shared.down = True
    way(mine).refund(verdict)
    shared.down = False
    assert not mine.hit(WHO)


@each("cost", [0, 3])
def test_a_correction_without_a_reply_is_not_sent_again(way: Any, cost: int) -> None:
    """The store may have made it, and would make it twice."""
    store = SharedStore()
    mine = limiter(store, [rule("local", "4/minute")])
    verdict = mine.hit(WHO)
    calls = store.calls
    store.mute = True
    for _ in range(2):
        way(mine).settle(verdict, cost)
    assert (store.calls, len(mine.slots.returns)) == (calls + 1, 0)
    store.mute = False
    assert mine.peek(WHO, 0).decisions[0].remaining == 4 - cost


def test_a_correction_that_was_not_sent_can_be_sent_later(way: Any, shared: SharedStore) -> None:
    """An open breaker sends nothing, so nothing is recorded as done."""
    mine = limiter(shared, [rule("local", "10/minute")])
    verdict, other = mine.hit(WHO), mine.hit(WHO)
    shared.down = True
    for _ in range(3):
        mine.hit(WHO)
    for _ in range(2):
        way(mine).refund(verdict)
        way(mine).settle(other, 4)
    shared.down = False
    wait_for(lambda: not mine.hit(WHO, 0).decisions[0].local, "a probe")
    mine.refund(verdict)
    mine.settle(other, 4)
    assert mine.peek(WHO, 0).decisions[0].remaining == 6


@on_loop
async def test_a_refund_clears_cached_rejections_once_it_is_made() -> None:
    """A rejection during the refund is not cached beyond its end."""
    store = SharedStore()
    mine = Limiter([rule("local", "1/minute")], store, ManualClock(1_000_000.0))
    verdict = await mine.ahit(WHO)
    meanwhile, _ = await asyncio.gather(mine.ahit(WHO), mine.arefund(verdict))
    assert not meanwhile
    assert await mine.ahit(WHO)


def test_a_reset_clears_local_counts(shared: SharedStore) -> None:
    """A key that was reset starts at zero in the next outage too."""
    mine = limiter(shared, [rule("local", "1/minute")])
    mine.hit(WHO)
    mine.reset("api", WHO)
    shared.down = True
    assert [mine.hit(WHO).allowed for _ in range(2)] == [True, False]
    shared.down = False
    mine.reset("api", WHO)
    shared.down = True
    assert mine.hit(WHO)


FAILURES = Rule(name="login", limits="5/hour", count_when={"status": [401]})


def sign_in(mine: Limiter, way: str) -> bool:
    """Send a good login, whose view resets its rule. Return whether it was allowed."""

    async def awaited() -> bool:
        verdict = await mine.ahit(WHO)
        if way == "a task":
            verdict["login"].reset()  # it ends after the request
        else:
            await mine.settlement.aforget_key(verdict, "login", WHO, mine.rules)
        await mine.aconclude(verdict, 200)
        await mine.aclose()
        return verdict.allowed

    if way in ("a task", "awaited"):
        return asyncio.run(awaited())
    verdict = mine.hit(WHO)
    if way == "a key":
        mine.settlement.forget_key(verdict, "login", WHO, mine.rules)
    else:
        verdict["login"].reset()
    mine.conclude(verdict, 200)
    return verdict.allowed


@each("sign_in_way", ["a rule", "a key", "a task", "awaited"])
def test_a_login_that_resets_its_rule_does_not_count(sign_in_way: str, shared: SharedStore) -> None:
    """During an outage, this process resets what it has counted on its own, failed logins too."""
    mine = limiter(shared, [FAILURES])
    shared.down = True
    mine.conclude(mine.hit(WHO), 401)
    assert [sign_in(mine, sign_in_way) for _ in range(12)] == [True] * 12
    assert mine.peek(WHO, cost=0).decisions[0].remaining == 5


def test_a_reset_raises_when_the_store_is_away(way: Any, shared: SharedStore) -> None:
    """An operator must know that the key was not reset."""
    mine = limiter(shared, [rule("local")])
    shared.down = True
    with pytest.raises(StoreError):
        way(mine).reset("api", WHO)


def test_a_probe_closes_the_breaker(caplog: pytest.LogCaptureFixture, shared: SharedStore) -> None:
    """After a successful probe the store decides again. The log has one line for each change."""
    mine = limiter(shared, [rule("allow", "1/minute")])
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        shared.down = True
        for _ in range(10):
            mine.hit(WHO)
        wait_for(lambda: mine.hit(WHO).allowed and shared.calls > 3, "a probe that fails, which changes nothing")
        shared.down = False
        wait_for(lambda: not mine.hit(WHO).allowed, "a probe")
    opened, closed = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(
        r"store SharedStore unreachable \(it does not answer\);"
        r" applying on_store_error \(rules: 1 allow\); next probe in 0\.[12] s",
        opened,
    )
    assert re.fullmatch(r"store SharedStore reachable again after \d+\.\d s", closed)


def test_a_probe_serves_event_loops_of_one_request(shared: SharedStore) -> None:
    """Requests with an event loop of their own, as asyncio.run makes them, find the store again."""
    mine = limiter(shared, [rule("allow", "1/minute")])
    shared.down = True
    for _ in range(10):
        asyncio.run(mine.ahit(WHO))
    shared.down = False
    wait_for(lambda: not asyncio.run(mine.ahit(WHO)).allowed, "a probe")
    asyncio.run(mine.aclose())


def test_a_probe_without_a_thread_raises_nothing(no_threads: pytest.MonkeyPatch, way: Any, shared: SharedStore) -> None:
    """When no thread can start, ``on_store_error`` decides, although a probe is due."""
    mine = limiter(shared, [rule("allow")])
    assert mine.remote is not None
    shared.down = True
    for _ in range(3):
        mine.hit(WHO)
    no_threads.setattr(mine.remote.breaker, "takes_probe", lambda now: True)
    assert way(mine).hit(WHO)
    assert (mine.remote.breaker.open, shared.calls) == (True, 3)
