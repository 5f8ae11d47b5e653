"""Requests with several limits of which some have leases: one call at most, and each limit counts what was allowed."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import ManualClock

IP = Rule(name="ip", limits="1000/minute", key="ip", consistency="leased", algorithm="fixed-window")
ALL = Rule(name="all", limits="400/minute", key=[], lease="5%", algorithm="fixed-window")
ENDPOINT = Rule(name="endpoint", limits="60/minute", key="path", algorithm="fixed-window")
RULES = [IP, ALL, ENDPOINT]
WHO, ANOTHER = {"ip": "192.0.2.7", "path": "/"}, {"ip": "198.51.100.1", "path": "/another"}


def limiter_of(store: SharedStore, *rules: Rule, clock: Any = None) -> Limiter:
    settings = Settings(rejection_cache=0, fleet_size=1)  # no announcements
    return Limiter(rules or RULES, store, clock or ManualClock(1_000_020.0), settings)


def setup(*rules: Rule) -> tuple[Limiter, SharedStore]:
    store = SharedStore()
    return limiter_of(store, *rules), store


def rest(limiter: Limiter, features: dict[str, str] = WHO) -> dict[str, int]:
    """What remains in the store."""
    return {each.rule: each.remaining for each in limiter.peek(features, cost=0).decisions}


def test_one_call_has_the_exact_limit_alone(way: Any) -> None:
    """The limits with a lease are consumed here, and the decisions keep the order of the rules."""
    limiter, store = setup()
    for count in range(1, 11):
        before = store.calls
        verdict = way(limiter).hit(WHO)
        assert store.calls == before + 1
        left = {each.rule: each.remaining for each in verdict.decisions}
        assert left == {"ip": 1000 - count, "all": 400 - count, "endpoint": 60 - count}
    assert rest(limiter) == {"ip": 1000 - 1 - 20, "all": 400 - 1 - 20, "endpoint": 50}


def test_a_rejected_request_gives_back_what_it_took(way: Any) -> None:
    """The exact limit rejects. The leases keep their cost, and the decisions show what they had before."""
    limiter, store = setup(IP, ALL, Rule(name="endpoint", limits="5/minute", key="path"))
    for _ in range(5):
        assert way(limiter).hit(WHO)
    before = store.calls
    for _ in range(50):
        verdict = way(limiter).hit(WHO)
        assert [each.rule for each in verdict.rejected_by] == ["endpoint"]
        assert [each.remaining for each in verdict.decisions] == [995, 395, 0]
    assert store.calls == before + 50
    limiter.close()
    assert rest(limiter) == {"ip": 995, "all": 395, "endpoint": 0}


def test_a_shadow_rule_gives_nothing_back(way: Any) -> None:
    """It would reject, so the request is allowed, and the leases count it."""
    limiter, _ = setup(IP, ALL, Rule(name="endpoint", limits="5/minute", key="path", mode="shadow"))
    assert all(way(limiter).hit(WHO) for _ in range(30))
    limiter.close()
    assert rest(limiter) == {"ip": 970, "all": 370, "endpoint": 0}


def test_a_share_is_not_taken_by_a_rejected_request(way: Any) -> None:
    """The exact limit rejects in the call with a share: the store counts none, and no second call is made."""
    limiter, store = setup(IP, Rule(name="endpoint", limits="1/minute", key="path"))
    way(limiter).hit(WHO)
    before = store.calls
    verdict = way(limiter).hit(WHO)
    assert store.calls == before + 1
    assert [(each.rule, each.hit[2], each.remaining) for each in verdict.decisions] == [
        ("ip", 1, 999),
        ("endpoint", 1, 0),
    ]
    assert way(limiter).hit({**WHO, "path": "/another"})
    limiter.close()
    assert rest(limiter)["ip"] == 998


def test_a_rejected_share_is_followed_by_the_hits_themselves(way: Any) -> None:
    """Too little is left for a share. The second call decides by the costs of the request."""
    limiter, store = setup()
    other = limiter_of(store)
    other.hit(WHO, cost=59)
    other.hit({"ip": "198.51.100.1"}, cost=330)
    way(limiter).hit({**WHO, "path": "/another"})
    before = store.calls
    verdict = way(limiter).hit(WHO)
    assert store.calls == before + 2
    assert [(each.allowed, each.remaining) for each in verdict.decisions] == [(True, 939), (True, 9), (True, 0)]
    verdict = way(limiter).hit(WHO)
    assert [each.rule for each in verdict.rejected_by] == ["endpoint"]


def test_a_failed_call_gives_back_what_was_taken(way: Any) -> None:
    """The policy decides the whole request, and the lease has its cost again."""
    limiter, store = setup()
    for _ in range(3):
        way(limiter).hit(WHO)
    store.down = True
    verdict = way(limiter).hit(WHO)
    assert [each.local for each in verdict.decisions] == [True, True, True]
    store.down = False
    limiter.close()
    assert rest(limiter) == {"ip": 997, "all": 397, "endpoint": 57}


def test_the_slot_of_a_concurrency_limit_is_taken_with_a_lease(way: Any) -> None:
    """A slot is always asked for. A request without a slot gives its part of the lease back."""
    limiter, _ = setup(Rule(name="jobs", limits=["1000/minute", "1 concurrent"], lease="2%"))
    for _ in range(3):
        verdict = way(limiter).hit(WHO)
        assert verdict
        assert not way(limiter).hit(WHO)
        limiter.refund(verdict)
    limiter.close()
    assert [each.remaining for each in limiter.peek(WHO, cost=0).decisions] == [1000, 1]


class SlowStore(SharedStore):
    """A store whose async calls wait until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()

    async def begin(self, limiter: Limiter, features: dict[str, str]) -> asyncio.Task[Verdict]:
        """Start a request, which waits for ``go`` in the store."""
        self.go.clear()
        task = asyncio.ensure_future(limiter.ahit(features))
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    async def aapply(self, *arguments: Any) -> Any:
        decisions = await super().aapply(*arguments)
        await self.go.wait()
        return decisions

    async def acorrect(self, *arguments: Any) -> Any:
        await self.go.wait()
        return await super().acorrect(*arguments)


async def cancelled(limiter: Limiter, store: SlowStore, features: dict[str, str]) -> None:
    """Cancel a request while the store decides it."""
    task = await store.begin(limiter, features)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.go.set()
    for _ in range(5):
        await asyncio.sleep(0)


@each(
    ("rules", "hits", "pause", "features", "later", "expected"),
    [
        # The store has decided the exact limit, so that is consumed, and nothing of the leases is.
        (RULES, 3, 0, WHO, 0, {"ip": 997, "all": 397, "endpoint": 56}),
        # The call with a share continues. It fills the lease, and counts the request.
        (RULES, 1, 0, WHO, 1, {"ip": 997, "all": 397, "endpoint": 57}),
        # The first request of another client returns the share that has ended, and takes none of its own.
        ([IP, ENDPOINT], 3, 3.5, ANOTHER, 0, {"ip": 997, "endpoint": 57}),
    ],
)
def test_a_cancelled_request_loses_no_share(
    rules: list[Rule], hits: int, pause: float, features: dict[str, str], later: int, expected: dict[str, int]
) -> None:
    """Its call continues, and what it took from leases goes back."""

    async def scenario() -> dict[str, int]:
        store, clock = SlowStore(), ManualClock(1_000_020.0)
        limiter = limiter_of(store, *rules, clock=clock)
        for _ in range(hits):
            await limiter.ahit(WHO)
        clock.advance(pause)
        await cancelled(limiter, store, features)
        for _ in range(later):
            before = store.calls
            assert await limiter.ahit(WHO)
            assert store.calls == before + 1
        await limiter.aclose()
        return rest(limiter)

    assert asyncio.run(scenario()) == expected


def test_a_cancelled_request_ignores_the_failure_of_its_share() -> None:
    """No request is left that could apply its policy. The loop reports no error that nobody has read."""
    errors: list[Any] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        store = SlowStore()
        limiter = limiter_of(store)
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


@each("reset", [False, True])
def test_what_goes_back_to_a_lease_that_has_left_the_table(reset: bool) -> None:
    """A returned lease gets the cost back, and returns it too. The lease from before a reset does not."""

    async def scenario() -> dict[str, int]:
        store, clock = SlowStore(), ManualClock(1_000_020.0)
        rules = [IP, Rule(name="endpoint", limits="3/minute", key="path", algorithm="fixed-window")]
        limiter = limiter_of(store, *rules, clock=clock)
        for _ in range(3):
            await limiter.ahit(WHO)
        task = await store.begin(limiter, WHO)
        if reset:
            limiter.reset("ip", WHO)
            limiter_of(store, IP, clock=clock).hit(WHO, 100)
        else:
            clock.advance(3.5)
            limiter.hit(ANOTHER)  # returns the ended lease
        store.go.set()
        assert not await task
        limiter.close()
        return rest(limiter)

    assert asyncio.run(scenario())["ip"] == (900 if reset else 997)


@each("seed", range(4))
def test_every_limit_counts_what_was_allowed(way: Any, seed: int) -> None:
    """Three processes, with costs: no limit is exceeded, and once all have closed the store counts each cost once."""
    store, chance = SharedStore(), random.Random(seed)
    limiters = [limiter_of(store) for _ in range(3)]
    used: dict[tuple[str, str], int] = {}
    people = [{"ip": f"192.0.2.{i}", "path": f"/{page}"} for i in range(3) for page in range(6)]
    for _ in range(300):
        features, cost = chance.choice(people), chance.choice((1, 1, 1, 2, 5))
        if way(chance.choice(limiters)).hit(features, cost):
            for key in (("ip", features["ip"]), ("all", ""), ("endpoint", features["path"])):
                used[key] = used.get(key, 0) + cost
    assert used[("all", "")] <= 400
    assert max(cost for (rule, _), cost in used.items() if rule == "endpoint") <= 60
    for limiter in limiters:
        limiter.close()
    for features in people:
        assert rest(limiter, features) == {
            "ip": 1000 - used.get(("ip", features["ip"]), 0),
            "all": 400 - used[("all", "")],
            "endpoint": 60 - used.get(("endpoint", features["path"]), 0),
        }


def test_a_request_with_one_exact_limit_asks_the_store() -> None:
    """Even where other rules have leases."""
    limiter, store = setup(
        Rule(name="a", limits="9/minute", match={"path": "/"}),
        Rule(name="b", limits="100/minute", lease="5%", match={"path": "/b"}),
    )
    for count in range(1, 4):
        assert limiter.hit(WHO)
        assert store.calls == count
