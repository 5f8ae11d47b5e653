"""The default algorithm: exact for small amounts, and a key for each of its two forms."""

from __future__ import annotations

import random

import pytest

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
NOON = 1_767_268_800.0  # the start of a minute and of an hour


def limiter_of(clock: ManualClock, limits: str, store: MemoryStore | str = "memory://") -> Limiter:
    return Limiter([Rule(name="api", limits=limits)], store, clock)


@pytest.mark.parametrize(("limits", "amount", "period"), [("1/minute", 1, 60), ("3/hour", 3, 3600), ("32/s", 32, 1)])
def test_a_small_amount_holds_in_any_period(limits: str, amount: int, period: int) -> None:
    """At random, in bursts, and around full minutes and hours, no period allows more than the amount."""
    for seed in range(3):
        chance, clock = random.Random(seed), ManualClock(NOON)
        limiter, now, allowed = limiter_of(clock, limits), NOON + chance.random() * period, []
        for _ in range(150 if amount < 32 else 400):
            edge = (now // period + 1) * period
            later = now + chance.random() * period / amount
            now = chance.choice([now, now + 0.001, edge - 0.001, edge, edge + 0.001, later])
            clock.set(now)
            allowed += [now] * limiter.hit(WHO).allowed
        assert len(allowed) > amount, seed
        pairs = zip(allowed, allowed[amount:], strict=False)
        assert all(last - first > period - 1e-6 for first, last in pairs), seed


def test_a_client_that_never_stops_gets_exactly_the_amount() -> None:
    """In each of five periods, from the first request on."""
    for limits, amount, period in ("1/minute", 1, 60), ("3/hour", 3, 3600):
        clock = ManualClock(NOON + 0.7 * period)
        limiter, allowed = limiter_of(clock, limits), []
        for _ in range(5):
            passed = 0
            for _ in range(20):
                passed += limiter.hit(WHO).allowed
                clock.advance(period / 20)
            allowed.append(passed)
        assert allowed == [amount] * 5


def test_a_changed_amount_keeps_its_count_on_either_side_of_32() -> None:
    """An amount that crosses 32 is counted in another way, so it starts fresh. The old count stays under its key."""
    for before, after, remaining in (20, 30, 25), (30, 20, 15), (32, 33, 33), (33, 32, 32), (33, 40, 35):
        clock, store = ManualClock(NOON + 1), MemoryStore()
        old, new = (limiter_of(clock, f"{amount}/hour", store) for amount in (before, after))
        for _ in range(5):
            assert old.hit(WHO)
        found = [each.peek(WHO, cost=0).decisions[0].remaining for each in (new, old)]
        assert found == [remaining, before - 5], (before, after)
