"""Leases on an event loop, at the end of a limiter and after a fork: as few calls, and nothing consumed twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, forksafe
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

WHO, ANOTHER = {"ip": "192.0.2.7"}, {"ip": "198.51.100.1"}


def setup(limits: str = "100/minute", lease: str = "50%") -> tuple[Limiter, SharedStore, ManualClock]:
    clock, store = ManualClock(1_000_020.0), SharedStore()
    rules = [Rule(name="api", limits=limits, lease=lease, algorithm="fixed-window")]
    return Limiter(rules, store, clock, Settings(rejection_cache=0)), store, clock


def left(limiter: Limiter, features: dict[str, str] = WHO) -> list[int]:
    """What the store says that nobody has drawn or consumed."""
    return [decision.remaining for decision in limiter.peek(features, cost=0).decisions]


def test_several_limits_are_consumed_without_asking() -> None:
    """Once all of a request's limits are drawn, no call is made; a peek makes one."""

    async def scenario() -> None:
        limiter, store, _ = setup("100/minute; 1000/hour")
        for _ in range(20):
            assert await limiter.ahit(WHO)
        assert store.calls == 2
        peeked = await limiter.apeek(WHO, cost=0)
        assert [decision.remaining for decision in peeked.decisions] == [49, 499]
        assert store.calls == 3

    asyncio.run(scenario())


def test_what_an_idle_key_has_left_comes_back_with_another_keys_call() -> None:
    """Once its lease has ended, the next request that asks the store anyway gives the unused part back."""

    async def scenario() -> None:
        limiter, store, clock = setup()
        for _ in range(3):
            await limiter.ahit(WHO)
        clock.advance(3)
        before = store.calls
        await limiter.ahit(ANOTHER)
        assert store.calls == before + 2
        assert left(limiter) == [97]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_closing_while_the_store_is_left_alone_asks_nothing(is_async: bool) -> None:
    """What is left lapses; nobody waits for a store that is known to be away."""
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


def test_a_lease_that_ended_while_it_was_drawn_comes_back() -> None:
    """Another request has taken it for ended; its unused part is given back all the same."""
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


def test_a_child_begins_without_its_parents_leases() -> None:
    """What a fork runs first in the child: its next hit asks the store, for what is drawn is the parent's."""
    limiter, store, _ = setup()
    for _ in range(3):
        limiter.hit(WHO)
    assert (store.calls, left(limiter)) == (2, [49])
    forksafe._in_child()
    assert limiter.hit(WHO)
    assert left(limiter) == [48]


def test_what_is_not_to_be_had_whole_is_asked_for_alone() -> None:
    """Others have consumed more than half: a draw of half of the limit is rejected, the request itself is not."""

    async def scenario() -> None:
        limiter, store, _ = setup()
        assert await limiter.ahit(WHO, cost=60)
        before = store.calls
        verdict = await limiter.ahit(WHO)
        assert (verdict.allowed, verdict.decisions[0].remaining) == (True, 39)
        assert store.calls == before + 2

    asyncio.run(scenario())
