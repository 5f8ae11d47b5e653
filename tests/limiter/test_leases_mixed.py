"""Requests with several limits of which some have leases: one call at most, and each limit counts what was allowed."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

IP = Rule(name="ip", limits="1000/minute", key="ip", consistency="leased", algorithm="fixed-window")
ALL = Rule(name="all", limits="400/minute", key=[], lease="5%", algorithm="fixed-window")
ENDPOINT = Rule(name="endpoint", limits="60/minute", key="path", algorithm="fixed-window")
RULES = [IP, ALL, ENDPOINT]
WHO = {"ip": "192.0.2.7", "path": "/"}

both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def setup(*rules: Rule, processes: int = 1) -> tuple[list[Limiter], SharedStore]:
    clock, store = ManualClock(1_000_020.0), SharedStore()
    settings = Settings(rejection_cache=0, fleet_size=1)  # no announcements
    return [Limiter(rules or RULES, store, clock, settings) for _ in range(processes)], store


def hit(limiter: Limiter, features: dict[str, str], is_async: bool = False, cost: int | None = None) -> Verdict:
    return asyncio.run(limiter.ahit(features, cost)) if is_async else limiter.hit(features, cost)


def rest(limiter: Limiter, features: dict[str, str] = WHO) -> dict[str, int]:
    """What remains in the store."""
    return {each.rule: each.remaining for each in limiter.peek(features, cost=0).decisions}


@both
def test_one_call_has_the_exact_limit_alone(is_async: bool) -> None:
    """The limits with a lease are consumed here, and the decisions keep the order of the rules."""
    (limiter,), store = setup()
    for count in range(1, 11):
        before = store.calls
        verdict = hit(limiter, WHO, is_async)
        assert store.calls == before + 1
        left = {each.rule: each.remaining for each in verdict.decisions}
        assert left == {"ip": 1000 - count, "all": 400 - count, "endpoint": 60 - count}
    assert rest(limiter) == {"ip": 1000 - 1 - 20, "all": 400 - 1 - 20, "endpoint": 50}


@both
def test_a_rejected_request_gives_back_what_it_took(is_async: bool) -> None:
    """The exact limit rejects. The leases keep their cost, and the decisions show what they had before."""
    (limiter,), store = setup(IP, ALL, Rule(name="endpoint", limits="5/minute", key="path"))
    for _ in range(5):
        assert hit(limiter, WHO, is_async)
    before = store.calls
    for _ in range(50):
        verdict = hit(limiter, WHO, is_async)
        assert [each.rule for each in verdict.rejected_by] == ["endpoint"]
        assert [each.remaining for each in verdict.decisions] == [995, 395, 0]
    assert store.calls == before + 50
    limiter.close()
    assert rest(limiter) == {"ip": 995, "all": 395, "endpoint": 0}


@both
def test_a_shadow_rule_gives_nothing_back(is_async: bool) -> None:
    """It would reject, so the request is allowed, and the leases count it."""
    (limiter,), _ = setup(IP, ALL, Rule(name="endpoint", limits="5/minute", key="path", mode="shadow"))
    assert all(hit(limiter, WHO, is_async) for _ in range(30))
    limiter.close()
    assert rest(limiter) == {"ip": 970, "all": 370, "endpoint": 0}


@both
def test_a_share_is_not_taken_by_a_rejected_request(is_async: bool) -> None:
    """The exact limit rejects in the call with a share: the store counts none, and no second call is made."""
    (limiter,), store = setup(IP, Rule(name="endpoint", limits="1/minute", key="path"))
    hit(limiter, WHO, is_async)
    before = store.calls
    verdict = hit(limiter, WHO, is_async)
    assert store.calls == before + 1
    assert [(each.rule, each.hit[2], each.remaining) for each in verdict.decisions] == [
        ("ip", 1, 999),
        ("endpoint", 1, 0),
    ]
    assert hit(limiter, {**WHO, "path": "/another"}, is_async)
    limiter.close()
    assert rest(limiter)["ip"] == 998


@both
def test_a_rejected_share_is_followed_by_the_hits_themselves(is_async: bool) -> None:
    """Too little is left for a share. The second call decides by the costs of the request."""
    (limiter, other), store = setup(processes=2)
    hit(other, WHO, cost=59)
    other.hit({"ip": "198.51.100.1"}, cost=330)
    hit(limiter, {**WHO, "path": "/another"}, is_async)
    before = store.calls
    verdict = hit(limiter, WHO, is_async)
    assert store.calls == before + 2
    assert [(each.allowed, each.remaining) for each in verdict.decisions] == [(True, 939), (True, 9), (True, 0)]
    verdict = hit(limiter, WHO, is_async)
    assert [each.rule for each in verdict.rejected_by] == ["endpoint"]


@both
def test_a_failed_call_gives_back_what_was_taken(is_async: bool) -> None:
    """The policy decides the whole request, and the lease has its cost again."""
    (limiter,), store = setup()
    for _ in range(3):
        hit(limiter, WHO, is_async)
    store.down = True
    verdict = hit(limiter, WHO, is_async)
    assert [each.local for each in verdict.decisions] == [True, True, True]
    store.down = False
    limiter.close()
    assert rest(limiter) == {"ip": 997, "all": 397, "endpoint": 57}


@both
def test_the_slot_of_a_concurrency_limit_is_taken_with_a_lease(is_async: bool) -> None:
    """A slot is always asked for. A request without a slot gives its part of the lease back."""
    (limiter,), _ = setup(Rule(name="jobs", limits=["1000/minute", "1 concurrent"], lease="2%"))
    for _ in range(3):
        verdict = hit(limiter, WHO, is_async)
        assert verdict
        assert not hit(limiter, WHO, is_async)
        limiter.refund(verdict)
    limiter.close()
    assert [each.remaining for each in limiter.peek(WHO, cost=0).decisions] == [1000, 1]


class SlowStore(SharedStore):
    """A store whose async calls wait until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()

    async def aapply(self, *arguments: Any) -> Any:
        decisions = await super().aapply(*arguments)
        await self.go.wait()
        return decisions

    async def acorrect(self, *arguments: Any) -> Any:
        await self.go.wait()
        return await super().acorrect(*arguments)


async def cancelled(limiter: Limiter, store: SlowStore, features: dict[str, str]) -> None:
    """Cancel a request while the store decides it."""
    store.go.clear()
    task = asyncio.ensure_future(limiter.ahit(features))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.go.set()
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_cancelled_request_gives_back_what_it_took() -> None:
    """The store has decided the exact limit, so that is consumed, and nothing of the leases is."""

    async def scenario() -> tuple[dict[str, int], int]:
        store = SlowStore()
        limiter = Limiter(RULES, store, ManualClock(1_000_020.0), Settings(rejection_cache=0, fleet_size=1))
        for _ in range(3):
            await limiter.ahit(WHO)
        await cancelled(limiter, store, WHO)
        await limiter.aclose()
        return rest(limiter), store.calls

    assert asyncio.run(scenario())[0] == {"ip": 997, "all": 397, "endpoint": 56}


def test_the_share_of_a_cancelled_request_is_not_lost() -> None:
    """The call continues. It fills the lease, and counts the request."""

    async def scenario() -> dict[str, int]:
        store = SlowStore()
        limiter = Limiter(RULES, store, ManualClock(1_000_020.0), Settings(rejection_cache=0, fleet_size=1))
        await limiter.ahit(WHO)
        await cancelled(limiter, store, WHO)
        before = store.calls
        assert await limiter.ahit(WHO)
        assert store.calls == before + 1
        await limiter.aclose()
        return rest(limiter)

    assert asyncio.run(scenario()) == {"ip": 997, "all": 397, "endpoint": 57}


def test_the_return_of_an_ended_lease_is_not_lost_with_its_request() -> None:
    """The first request of another client returns the share, and takes none of its own."""

    async def scenario() -> dict[str, int]:
        store, clock = SlowStore(), ManualClock(1_000_020.0)
        limiter = Limiter([IP, ENDPOINT], store, clock, Settings(rejection_cache=0, fleet_size=1))
        for _ in range(3):
            await limiter.ahit(WHO)
        clock.advance(3.5)
        await cancelled(limiter, store, {"ip": "198.51.100.1", "path": "/another"})
        await limiter.aclose()
        return rest(limiter)

    assert asyncio.run(scenario()) == {"ip": 997, "endpoint": 57}


def test_a_cancelled_request_ignores_the_failure_of_its_share() -> None:
    """No request is left that could apply its policy. The loop reports no error that nobody has read."""
    errors: list[Any] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        store = SlowStore()
        limiter = Limiter(RULES, store, ManualClock(1_000_020.0), Settings(rejection_cache=0, fleet_size=1))
        await limiter.ahit(WHO)
        store.down = True
        calls = store.calls
        task = asyncio.ensure_future(limiter.ahit(WHO))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
        assert store.calls > calls
        del task
        gc.collect()

    asyncio.run(scenario())
    assert errors == []


@pytest.mark.parametrize("reset", [False, True])
def test_what_goes_back_to_a_lease_that_has_left_the_table(reset: bool) -> None:
    """A returned lease gets the cost back, and returns it too. The lease from before a reset does not."""

    async def scenario() -> dict[str, int]:
        store, clock = SlowStore(), ManualClock(1_000_020.0)
        rules = [IP, Rule(name="endpoint", limits="3/minute", key="path", algorithm="fixed-window")]
        limiter = Limiter(rules, store, clock, Settings(rejection_cache=0, fleet_size=1))
        for _ in range(3):
            await limiter.ahit(WHO)
        store.go.clear()
        task = asyncio.ensure_future(limiter.ahit(WHO))
        for _ in range(5):
            await asyncio.sleep(0)
        if reset:
            limiter.reset("ip", WHO)
            Limiter([IP], store, clock, Settings(rejection_cache=0, fleet_size=1)).hit(WHO, 100)
        else:
            clock.advance(3.5)
            limiter.hit({"ip": "198.51.100.1", "path": "/another"})  # returns the ended lease
        store.go.set()
        assert not await task
        limiter.close()
        return rest(limiter)

    assert asyncio.run(scenario())["ip"] == (900 if reset else 997)


@pytest.mark.parametrize("seed", range(4))
@both
def test_every_limit_counts_what_was_allowed(seed: int, is_async: bool) -> None:
    """Three processes, with costs: no limit is exceeded, and once all have closed the store counts each cost once."""
    limiters, store = setup(processes=3)
    chance = random.Random(seed)
    used: dict[tuple[str, str], int] = {}
    people = [{"ip": f"192.0.2.{i}", "path": f"/{page}"} for i in range(3) for page in range(6)]
    for _ in range(300):
        features, cost = chance.choice(people), chance.choice((1, 1, 1, 2, 5))
        if hit(chance.choice(limiters), features, is_async, cost):
            for key in (("ip", features["ip"]), ("all", ""), ("endpoint", features["path"])):
                used[key] = used.get(key, 0) + cost
    assert used[("all", "")] <= 400
    assert max(cost for (rule, _), cost in used.items() if rule == "endpoint") <= 60
    for limiter in limiters:
        limiter.close()
    last = Limiter(RULES, store, ManualClock(1_000_020.0))
    for features in people:
        consumed = {each.rule: each.limit - each.remaining for each in last.peek(features, cost=0).decisions}
        assert consumed == {
            "ip": used.get(("ip", features["ip"]), 0),
            "all": used[("all", "")],
            "endpoint": used.get(("endpoint", features["path"]), 0),
        }


def test_a_request_with_one_exact_limit_asks_the_store() -> None:
    """Even where other rules have leases."""
    (limiter,), store = setup(
        Rule(name="a", limits="9/minute", match={"path": "/"}),
        Rule(name="b", limits="100/minute", lease="5%", match={"path": "/b"}),
    )
    for count in range(1, 4):
        assert limiter.hit(WHO)
        assert store.calls == count


def test_memory_has_no_leases() -> None:
    """One process: the option is accepted and means nothing."""
    limiter = Limiter(RULES, MemoryStore(), ManualClock(1_000_020.0))
    assert [each.remaining for each in [limiter.hit(WHO) for _ in range(9)][-1].decisions] == [991, 391, 51]
