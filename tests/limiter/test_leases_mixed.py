"""Requests with several limits of which some or all have leases: each limit counts what was allowed."""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Coroutine
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
LEASED = [IP, ALL, Rule(name="endpoint", limits="60/minute", key="path", lease="5%", algorithm="fixed-window")]
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


def test_one_call_decides_all_limits_beside_an_exact_one(way: Any) -> None:
    """No share is taken, and none is used that other requests have taken."""
    limiter, store = setup(IP, ALL, Rule(name="endpoint", limits="5/minute", key="path", match={"path": "/"}))
    for _ in range(2):
        way(limiter).hit(ANOTHER)
    for count in range(1, 51):
        before = store.calls
        verdict = way(limiter).hit(WHO)
        assert store.calls == before + 1
        assert [each.rule for each in verdict.rejected_by] == ["endpoint"] * (count > 5)
        count = min(count, 5)
        left = {each.rule: each.remaining for each in verdict.decisions}
        assert left == {"ip": 1000 - count, "all": 400 - 1 - 20 - count, "endpoint": 5 - count}
    limiter.close()
    assert rest(limiter) == {"ip": 995, "all": 393, "endpoint": 0}


def test_a_share_is_not_taken_by_a_rejected_request(way: Any) -> None:
    """Another limit rejects in the call with a share: the store counts none, and no second call is made."""
    limiter, store = setup(*LEASED)
    limiter_of(store, *LEASED).hit(WHO, cost=60)
    way(limiter).hit({**WHO, "path": "/another"})
    before = store.calls
    verdict = way(limiter).hit(WHO)
    assert store.calls == before + 1
    assert [(each.hit[2], each.remaining) for each in verdict.decisions] == [(1, 939), (1, 339), (1, 0)]
    assert way(limiter).hit({**WHO, "path": "/another"})
    limiter.close()
    assert rest(limiter)["ip"] == 938


@each("rules", [LEASED, LEASED[::-1]])
def test_a_rejected_share_is_followed_by_the_hits_themselves(way: Any, rules: list[Rule]) -> None:
    """Too little is left for a share. The second call decides by the costs of the request."""
    limiter, store = setup(*rules)
    other = limiter_of(store, *rules)
    other.hit(WHO, cost=59)
    other.hit({"ip": "198.51.100.1"}, cost=330)
    way(limiter).hit({**WHO, "path": "/another"})
    before = store.calls
    verdict = way(limiter).hit(WHO)
    assert store.calls == before + 2
    left = {each.rule: each.remaining for each in verdict.decisions if each.allowed}
    assert left == {"ip": 939, "all": 9, "endpoint": 0}
    verdict = way(limiter).hit(WHO)
    assert [each.rule for each in verdict.rejected_by] == ["endpoint"]


def test_a_rule_with_a_lease_and_slots_is_exact(way: Any) -> None:
    """The store is asked for each slot, and decides the other limit, too."""
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
        # The call with a share continues. It fills the lease, and counts the request.
        (LEASED, 1, 0, WHO, 1, {"ip": 997, "all": 397, "endpoint": 57}),
        # The first request of another client returns the share that has ended, and takes none of its own.
        ([IP], 3, 3.5, ANOTHER, 0, {"ip": 997}),
    ],
)
def test_a_cancelled_request_loses_no_share(
    rules: list[Rule], hits: int, pause: float, features: dict[str, str], later: int, expected: dict[str, int]
) -> None:
    """Its call continues."""

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
            assert store.calls == before
        await limiter.aclose()
        return rest(limiter)

    assert asyncio.run(scenario()) == expected


def test_a_cancelled_request_ignores_the_failure_of_its_share() -> None:
    """No request is left that could apply its policy. The loop reports no error that nobody has read."""
    errors: list[Any] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        store = SlowStore()
        limiter = limiter_of(store, *LEASED)
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


def test_a_cancelled_task_of_the_limiter_cancels_no_request() -> None:
    """Code that cancels all unknown tasks may come before the first step of the share. The request counts locally."""

    async def outcome_of(request: Coroutine[Any, Any, Any]) -> Any:
        task, known = asyncio.ensure_future(request), asyncio.all_tasks()
        await asyncio.sleep(0)
        for other in asyncio.all_tasks() - known - {task}:
            other.cancel()
        return await task

    async def scenario() -> list[bool]:
        limiter, _ = setup(*LEASED)
        verdict = await limiter.ahit(WHO)
        shared = await outcome_of(limiter.ahit(WHO))
        await outcome_of(limiter.arefund(verdict))
        return [each.local for each in shared.decisions]

    assert asyncio.run(scenario()) == [True, True, True]


@each("seed", range(4))
def test_every_limit_counts_what_was_allowed(way: Any, seed: int) -> None:
    """Three processes, with costs: no limit is exceeded, and once all have closed the store counts each cost once."""
    store, chance = SharedStore(), random.Random(seed)
    rules = [*LEASED, Rule(name="exact", limits="40/minute", key=[], match={"path": "/0"}, algorithm="fixed-window")]
    limiters = [limiter_of(store, *rules) for _ in range(3)]
    used: Counter[str] = Counter()
    people = [{"ip": f"192.0.2.{i}", "path": f"/{page}"} for i in range(3) for page in range(6)]
    for _ in range(300):
        features, cost = chance.choice(people), chance.choice((1, 1, 1, 2, 5))
        verdict = way(chance.choice(limiters)).hit(features, cost)
        used.update({each.key: cost for each in verdict.decisions if verdict})
    for limiter in limiters:
        limiter.close()
    for features in people:
        for decision in limiter.peek(features, cost=0).decisions:
            assert used[decision.key] <= decision.limit
            assert decision.remaining == decision.limit - used[decision.key]
