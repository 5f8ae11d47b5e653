"""Leases on an event loop, at close and after a fork: few calls, and nothing is consumed twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Hit
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO, ANOTHER = {"ip": "192.0.2.7"}, {"ip": "198.51.100.1"}


def setup(limits: str = "100/minute", lease: str = "50%") -> tuple[Limiter, SharedStore, ManualClock]:
    clock, store = ManualClock(1_000_020.0), SharedStore()
    rules = [Rule(name="api", limits=limits, lease=lease, algorithm="fixed-window")]
    return Limiter(rules, store, clock, Settings(rejection_cache=0)), store, clock


def left(limiter: Limiter, features: dict[str, str] = WHO) -> list[int]:
    """What remains in the store."""
    return [decision.remaining for decision in limiter.peek(features, cost=0).decisions]


def test_several_limits_are_served_from_leases() -> None:
    """With leases of all limits no call is made; a peek makes one."""

    async def scenario() -> None:
        limiter, store, _ = setup("100/minute; 1000/hour")
        for _ in range(20):
            assert await limiter.ahit(WHO)
        assert store.calls == 2
        peeked = await limiter.apeek(WHO, cost=0)
        assert [decision.remaining for decision in peeked.decisions] == [49, 499]
        assert store.calls == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_close_with_an_open_breaker_makes_no_call(is_async: bool) -> None:
    """The shares lapse, and close does not wait."""
    limiter, store, _ = setup()
    for _ in range(3):
        limiter.hit(WHO)
    store.down = True
    for _ in range(3):
        limiter.hit(ANOTHER)
    before = store.calls
    if is_async:
        asyncio.run(limiter.aclose())
    else:
        limiter.close()
    assert store.calls == before


def test_a_lease_that_ended_during_its_call_is_returned() -> None:
    """Another request has removed it as ended; its unused part is returned too."""
    limiter, store, clock = setup()
    limiter.hit(WHO)
    plain = store.apply
    with pytest.MonkeyPatch.context() as patch:

        def slow(*told: Any) -> Any:
            patch.undo()
            decisions = plain(*told)
            clock.advance(3.5)
            limiter.hit(ANOTHER)
            return decisions

        patch.setattr(store, "apply", slow)
        assert limiter.hit(WHO)
    limiter.hit({"ip": "198.51.100.2"})
    assert left(limiter) == [98]


def test_a_share_that_arrives_after_the_next_one_is_returned() -> None:
    """The store has decided on it after its lease would have ended, when the key has another lease."""

    async def scenario() -> list[int]:
        limiter, _, clock = setup(lease="20%")
        await limiter.ahit(WHO)
        remote: Any = limiter.remote
        late = remote.leases.begin([Hit(*hit) for hit in limiter.match(WHO).hits(WHO, 1)])  # type: ignore[union-attr]
        clock.advance(3)
        assert await limiter.ahit(WHO)
        remote.leases.learn(late, remote.store.apply(late.asked, clock()))
        await limiter.aclose()
        return left(limiter)

    assert asyncio.run(scenario()) == [97]
