"""The default algorithm: exact for small amounts, and a key for each of its two forms."""

from __future__ import annotations

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
NOON = 1_767_268_800.0  # the start of a minute and of an hour


def limiter_of(clock: ManualClock, limits: str, store: MemoryStore | str = "memory://") -> Limiter:
    return Limiter([Rule(name="api", limits=limits)], store, clock)


def test_a_changed_amount_keeps_its_count_on_either_side_of_32() -> None:
    """An amount that crosses 32 is counted in another way, so it starts fresh. The old count stays under its key."""
    for before, after, remaining in (20, 30, 25), (30, 20, 15), (32, 33, 33), (33, 32, 32), (33, 40, 35):
        clock, store = ManualClock(NOON + 1), MemoryStore()
        old, new = (limiter_of(clock, f"{amount}/hour", store) for amount in (before, after))
        for _ in range(5):
            assert old.hit(WHO)
        found = [each.peek(WHO, cost=0).decisions[0].remaining for each in (new, old)]
        assert found == [remaining, before - 5], (before, after)
