"""Expiry in the memory store: nothing is forgotten while it matters, and nothing stays when it does not."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from memory_rate import ALGORITHMS, clock_of, hit, limiter, store_of

# -- expiry ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("max_keys", [1_000_000, 500])
def test_when_all_has_expired_a_few_hits_empty_the_store(algorithm: str, max_keys: int) -> None:
    """Keys and memory are back near nothing, with no thread to do it."""
    tracemalloc.start()
    try:
        rate = limiter("3/minute", max_keys, algorithm=algorithm)
        hit(rate, "first")
        gc.collect()
        empty = tracemalloc.get_traced_memory()[0]
        for i in range(3000):
            hit(rate, f"user {i}")
        full = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            clock_of(rate).advance(200)
            hit(rate, "last")
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store_of(rate)) == 1
    assert full - empty > 200_000
    assert left - empty < 0.05 * (full - empty)


def test_a_million_keys_go_in_a_few_steps() -> None:
    """No hit has to drop all at once: each takes its part, and the store is empty after a handful."""
    rate = limiter("3/minute", algorithm="fixed-window")
    for i in range(120_000):
        hit(rate, f"{i}")
    clock_of(rate).advance(500)
    lengths = []
    for _ in range(4):
        hit(rate, "x")
        lengths.append(len(store_of(rate)))
    assert lengths == [70_001, 20_001, 1, 1]


def test_one_jump_far_ahead_expires_everything() -> None:
    """A clock that jumps by years hands out one fresh quota, and the store goes on from there."""
    rate = limiter("3/minute")
    for i in range(50):
        hit(rate, f"{i}")
    clock_of(rate).set(4_000_000_000.0)
    assert [hit(rate, "0") for _ in range(4)] == [True, True, True, False]
    assert len(store_of(rate)) == 1
    clock_of(rate).advance(200)
    assert hit(rate, "0")
    assert len(store_of(rate)) == 1


def test_a_clock_that_goes_back_frees_nobody() -> None:
    """Who was rejected stays rejected for the length of the jump."""
    rate = limiter("3/minute")
    assert [hit(rate, "a") for _ in range(4)] == [True, True, True, False]
    for _ in range(20):
        clock_of(rate).advance(-40)
        assert not hit(rate, "a")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_forgotten_while_it_matters(algorithm: str) -> None:
    """However the shelves turn in between, a key is let in at the moment it was told, and not before."""
    rng = random.Random(7)
    rate = limiter("3/minute", algorithm=algorithm)
    for _ in range(60):
        clock_of(rate).advance(rng.random() * 90)
        verdict = rate.hit({"user": "a"}, 3)
        hit(rate, "somebody else")
        if not verdict.allowed:
            assert verdict.retry_after is not None
            clock_of(rate).advance(verdict.retry_after - 1e-6)
            assert not hit(rate, "a", 3)
            clock_of(rate).advance(1e-6)
            assert hit(rate, "a", 3)


# -- debts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_keys", [1_000_000, 1], ids=["own", "shared"])
@pytest.mark.parametrize("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_a_debt_survives_as_long_as_it_lasts(algorithm: str, max_keys: int) -> None:
    """A bucket charged a hundred times its size is rejected until that has drained, though shelves turn meanwhile."""
    rate = limiter("60/minute burst 10", max_keys, algorithm=algorithm)
    hit(rate, "somebody else")
    verdict = rate.hit({"user": "debtor"})
    rate.settle(verdict, 1000)
    for _ in range(99):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")
        hit(rate, "somebody else")
    clock_of(rate).advance(2)
    assert hit(rate, "debtor")
    for _ in range(3):
        clock_of(rate).advance(30)
        hit(rate, "somebody else")
    assert len(store_of(rate)) == 1
    assert not any(each.overdue for each in store_of(rate)._by_span.values())


def test_a_debt_that_is_partly_given_back_is_still_a_debt() -> None:
    """Settled up, then down: what is left is remembered, also when the key got a place of its own meanwhile."""
    rate = limiter("60/minute burst 10", max_keys=1, algorithm="token-bucket")
    first = rate.hit({"user": "first"})
    verdict = rate.hit({"user": "debtor"})
    rate.settle(verdict, 1000)
    rate.refund(first)
    rate.settle(verdict, 500)
    for _ in range(49):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")


def test_debts_of_strangers_take_no_memory_beyond_the_bound() -> None:
    """What is noted of debts is bounded like the states themselves."""
    rate = limiter("60/minute burst 10", max_keys=100, algorithm="token-bucket")
    for i in range(40_000):
        rate.settle(rate.hit({"user": f"{i}"}, 1), 1000)
    noted = [key for each in store_of(rate)._by_span.values() for key in each.overdue]
    assert sum("user=" in key for key in noted) == 100
    for i in range(100):
        rate.reset("r", {"user": f"{i}"})
    assert len(store_of(rate)) == 0
    assert not any("user=" in key for each in store_of(rate)._by_span.values() for key in each.overdue)


def test_a_debt_under_a_longer_burst_moves_along() -> None:
    """A key in debt whose limit turns out to live longer for others is still in debt."""
    rate = limiter("60/minute burst 10", algorithm="token-bucket", per_key={"vip": "60/minute burst 600"})
    rate.settle(rate.hit({"user": "debtor"}), 100)
    hit(rate, "vip", 600)
    for _ in range(9):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")
    clock_of(rate).advance(2)
    assert hit(rate, "debtor")
