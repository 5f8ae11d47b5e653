"""Tiered windows as counters."""

import random
import time
from contextlib import closing
from unittest.mock import Mock

import pytest
from memcached_handles import (
    NOW,
    check_rounded,
    commands,
    counted,
    hit,
    names_in,
    rule_of,
    time_of,
    undo,
    value_of,
)
from memcached_meddling import Meddling
from servers import Server, wait_for

from ratelimit_mw.clock import SECOND
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.memcached.store import MemcachedCall, MemcachedStore
from ratelimit_mw.testing.reference_store import ReferenceStore
from ratelimit_mw.testing.store_suite import limit_of

MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


# -- tiered windows --------------------------------------------------------------------------------------------


def test_a_tiered_hit_counts_in_every_tier_while_its_block_matters(
    memcached_server: Server, store: MemcachedStore
) -> None:
    """A counter lives for a whole period after the end of its block."""
    limit = limit_of("1000/day", {"name": "tiered-window", "precision": "1s"})
    before = min(time.time(), time_of(memcached_server))
    store.apply([hit(limit, cost=3)])
    found = names_in(memcached_server, rule_of(limit))
    for ends, block in zip(sorted(found.values()), (1, 12, 144, 1728), strict=True):
        assert before - 1 <= ends - 86_400 - block <= time.time() + 4
    assert {int(value_of(memcached_server, name)) for name in found} == {3}


def test_a_tiered_window_takes_one_round_trip_and_a_rejection_two(
    memcached_server: Server, store: MemcachedStore
) -> None:
    """A hit counts and reads at most 87 counters together. A rejected hit is refunded."""
    limit = limit_of("3/day", {"name": "tiered-window", "precision": "1s"})
    trips = counted(store)
    before = commands(memcached_server)["get"]
    for now in (NOW, NOW + 30 * MINUTE, NOW + 300 * MINUTE):
        assert store.apply([hit(limit)], now)[0].allowed
    assert len(trips) == 3
    assert not store.apply([hit(limit)], NOW + 301 * MINUTE)[0].allowed
    assert len(trips) == 5
    assert commands(memcached_server)["get"] - before <= 1 + 87 * 4
    assert store.apply([hit(limit, 0)], NOW + 302 * MINUTE)[0].remaining == 0


def test_a_rejected_request_refunds_what_it_has_counted(memcached_server: Server, store: MemcachedStore) -> None:
    """Whichever limit rejects it, and when another client is faster at a value."""
    tiered, narrow = limit_of("9/day", "tiered-window"), limit_of("2/day", "gcra")
    left = [True, False]  # not at the read, which counts the tiered window
    meddle = lambda: left and left.pop() and store.apply([hit(narrow)], NOW)  # noqa: E731
    with closing(Meddling(memcached_server, meddle)) as meddled:
        assert meddled.apply([hit(tiered), hit(narrow)], NOW)[0].allowed
    for _ in range(3):
        store.apply([hit(tiered), hit(narrow)], NOW)
    assert store.apply([hit(tiered, 0), hit(narrow, 0)], NOW)[0].remaining == 8


def test_a_failed_request_refunds_what_it_counted(store: MemcachedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another limit may be on a server that is gone. Its outage uses up no other limit."""
    tiered = limit_of("9/day", "tiered-window")
    monkeypatch.setattr(MemcachedCall, "swap", Mock(side_effect=TimeoutError))
    with pytest.raises(StoreError):
        store.apply([hit(tiered), hit(limit_of("2/day", "gcra"))], NOW)
    monkeypatch.undo()
    wait_for(lambda: store.apply([hit(tiered, 0)], NOW)[0].remaining == 9, "the refund")


def test_a_reset_leaves_no_part_of_a_block(store: MemcachedStore) -> None:
    """Parts of older blocks stay in the server, and count no longer when the window begins within their block."""
    limit = limit_of("9/day", {"name": "tiered-window", "precision": "1s"})
    for minutes in range(0, 9 * 100, 100):
        assert store.apply([hit(limit)], NOW + minutes * MINUTE)[0].allowed
    reset_at = NOW + 23 * 60 * MINUTE
    assert store.apply([hit(limit, 0)], reset_at)[0].remaining == 0
    store.apply([hit(limit, 0, "another")], reset_at)
    store.forget([hit(limit).key])
    for later in range(0, 24 * 3600, 97):
        assert store.apply([hit(limit, 0)], reset_at + later * SECOND)[0].remaining == 9, later


def test_a_refund_of_a_cost_before_a_reset_changes_nothing(store: MemcachedStore) -> None:
    """Its smallest block may still be in the server, and a larger one may count hits after the reset."""
    limit = limit_of("9/day", {"name": "tiered-window", "precision": "1s"})
    began = NOW - NOW % (1728 * SECOND)
    reset_at = began + 20 * MINUTE
    (decision,) = store.apply([hit(limit, 5)], began)
    store.apply([hit(limit, 0)], reset_at)
    store.forget([hit(limit).key])
    assert store.apply([hit(limit, 9)], reset_at + SECOND)[0].allowed
    store.correct([undo(hit(limit, 5), decision)], reset_at + 2 * SECOND)
    assert store.apply([hit(limit, 0)], reset_at + 2 * SECOND)[0].remaining == 0


def test_clocks_that_differ_by_less_than_a_bucket_allow_no_more(store: MemcachedStore) -> None:
    """A hit that a faster clock has counted in the future counts now."""
    limit = limit_of("10/minute", "tiered-window")
    passed = 0
    for i in range(40):
        passed += store.apply([hit(limit)], NOW + (i % 2) * SECOND)[0].allowed
    assert passed == 10


def test_a_tiered_window_of_five_tiers_decides_as_the_pure_function(store: MemcachedStore) -> None:
    """In a window of 40 days by the second, only waits are longer, by at most a tenth of the period."""
    chance = random.Random(0)
    limit = limit_of("300/40d", {"name": "tiered-window", "precision": "1s"})
    model, now = ReferenceStore(), NOW
    for _ in range(250):
        cost = chance.choice((0, 1, 1, 20, 60, 299))
        expected = model.apply([hit(limit, cost)], now)
        check_rounded(store.apply([hit(limit, cost)], now), expected, f"at {now}")
        now += chance.choice((0, 1, 30 * SECOND, 10 * MINUTE, 50 * MINUTE, 7 * 60 * MINUTE, 3 * DAY, 11 * DAY))
        if chance.random() < 0.3 and (waits := [d.retry_us for d in expected if d.retry_us]):
            now += waits[0] - chance.choice((0, 1))
