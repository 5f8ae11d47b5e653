"""Bans beside the rejection cache, and without the store."""

from typing import Any

from ban_kit import BAN, START, WHO, ban_client, rule_of
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter
from ratelimit_mw.testing import ManualClock


def test_the_rejection_cache_loses_no_rejection(shared: SharedStore) -> None:
    """Each rejection asks the store, until the client is banned. The ban itself is cached."""
    limiter = Limiter([rule_of(ban={**BAN, "after": 3})], shared)
    assert [limiter.hit(WHO).banned for _ in range(5)] == [False] * 4 + [True]
    calls = shared.calls
    assert calls == 5, "one call for each request, even for the rejections that are counted"
    verdict = limiter.hit(WHO)
    assert verdict.banned
    assert [3598 < (d.retry_after or 0) <= 3600 for d in verdict.decisions] == [True]
    assert shared.calls == calls
    limiter.reset("login", WHO)
    assert limiter.hit(WHO).allowed


def test_a_cached_ban_is_shown_beside_a_longer_wait(shared: SharedStore) -> None:
    """The limit rejects for an hour, the ban for a minute: the client is banned, and waits for an hour."""
    limiter = Limiter([rule_of(limits="1/hour", ban={**BAN, "for": "1m"})], shared)
    ban_client(limiter)
    for _ in range(3):
        verdict = limiter.hit(WHO)
        assert verdict.banned
        assert (verdict.retry_after or 0) > 3598
    assert shared.calls == 4


def test_a_cached_rejection_of_another_rule_counts_for_the_ban_too(shared: SharedStore) -> None:
    limiter = Limiter(
        [rule_of("site", "1/minute", ban=None), rule_of("api", "1/minute", ban={**BAN, "after": 4})], shared
    )
    limiter.hit(WHO)
    for _ in range(4):
        assert not limiter.hit(WHO).banned
    assert limiter.hit(WHO).banned


@each("by_hand", [None, 7200])
@each("looks", [60, 0])
def test_a_ban_holds_without_the_store(by_hand: int | None, looks: int) -> None:
    """A process that knows of a ban keeps rejecting until its end. It knows it longer, for the length of the next."""
    store, clock = SharedStore(), ManualClock(START)
    limiter = Limiter([rule_of(limits="5/minute", ban={**BAN, "growth": 2})], store, clock)
    if by_hand:
        assert limiter.hit(WHO)
        limiter.clients.ban("login", WHO, by_hand)
    else:
        ban_client(limiter, hits=7)
    store.down, left = True, (by_hand or 3600) - looks
    clock.advance(looks)
    if looks:
        verdict = limiter.hit(WHO)
        assert (verdict.banned, verdict.retry_after, verdict.decisions[0].local) == (True, left, True)
    clock.advance(left)
    assert limiter.hit(WHO).allowed


def test_rejections_without_the_store_start_a_ban_of_the_process(clock: ManualClock, shared: SharedStore) -> None:
    limiter = Limiter([rule_of()], shared, clock)
    assert [limiter.hit(WHO).allowed for _ in range(2)] == [True, False]
    shared.down = True
    assert not limiter.hit(WHO).banned
    assert limiter.hit(WHO).retry_after == 3600
    assert limiter.hit(WHO).banned


@each(("policy", "status"), [("deny", 503), ("allow", 200)])
def test_other_policies_have_no_bans(policy: Any, status: int) -> None:
    store, clock = SharedStore(), ManualClock(START)
    limiter = Limiter([rule_of(on_store_error=policy)], store, clock)
    ban_client(limiter)
    store.down = True
    verdict = limiter.hit(WHO)
    assert (verdict.status, verdict.banned) == (status, False)
