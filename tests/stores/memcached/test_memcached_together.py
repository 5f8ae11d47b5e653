"""Requests of one event loop at the same keys of a Memcached: they are decided together, as if one after the other."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from memcached_handles import NOW, PATIENT, ask, closing, commands, hit, names_in, opened, rule_of
from memcached_meddling import Meddling
from servers import Server

from ratelimit_mw import StoreError
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import StoreSuite, limit_of

SPREAD = ("tiered-window", "sliding-window-log")
PACKED = [spec for spec in StoreSuite.algorithms if (spec if isinstance(spec, str) else spec["name"]) not in SPREAD]
TOGETHER = 200
TRIES = 20


async def all_of(store: MemcachedStore, requests: Sequence[Sequence[Hit]]) -> list[list[Decision]]:
    """What requests come to that are there at the same time."""
    return await asyncio.gather(*(store.aapply(hits, NOW) for hits in requests))


def decided(store: MemcachedStore, requests: Sequence[Sequence[Hit]]) -> list[list[Decision]]:
    """The same on a loop of its own."""
    return asyncio.run(closing(store, all_of(store, requests)))


def shown(decisions: Sequence[Decision]) -> list[tuple[Any, ...]]:
    return [(d.allowed, d.remaining, d.retry_us, d.reset_us, d.at_us, d.delay_us, d.source.rule) for d in decisions]


@pytest.mark.parametrize("spec", PACKED, ids=str)
def test_requests_for_one_key_do_not_reject_each_other(memcached_server: Server, spec: Any) -> None:
    """The first one goes alone, and all others after it go together: each is counted, for two writings in all."""
    limit = limit_of("1000/day", spec)
    before = commands(memcached_server)["set"]
    with opened(memcached_server) as store:
        found = decided(store, [[hit(limit)]] * TOGETHER)
    assert [(d.allowed, d.remaining) for (d,) in found] == [(True, 999 - i) for i in range(TOGETHER)]
    assert commands(memcached_server)["set"] - before == 2


def test_200_requests_for_one_key_pass_in_the_time_that_a_call_has(memcached_server: Server) -> None:
    """In the 50 ms that a call has by default none of them is rejected under a wide limit, or ends in an error."""
    limit = limit_of("1000000/minute")

    async def once(store: MemcachedStore) -> list[bool]:
        await store.aping()
        found = await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(TOGETHER)), return_exceptions=True)
        return [not isinstance(each, BaseException) and each[0].allowed for each in found]

    for _ in range(TRIES):  # a machine that is busy may delay anything
        with opened(memcached_server, timeout_us=50_000) as store:
            found = asyncio.run(closing(store, once(store)))
        if all(found):
            break
    assert found == [True] * TOGETHER


@pytest.mark.parametrize("seed", range(5))
def test_together_is_as_one_after_the_other(memcached_server: Server, seed: int) -> None:
    """Several limits of any algorithm, shadows, any cost, few keys: every answer is that of the memory store, which
    takes the requests in the order in which they came."""
    chance = random.Random(seed)
    quotas = ("5/minute", "40/hour", "1000/day")
    limits = [limit_of(chance.choice(quotas), spec, shadow=chance.random() < 0.2) for spec in PACKED]
    requests = [
        [hit(limit, chance.choice((0, 1, 1, 2, 7)), f"c{chance.randrange(3)}") for limit in chance.sample(limits, 3)]
        for _ in range(300)
    ]
    memory = open_store("memory://")
    expected = [shown(memory.apply(hits, NOW)) for hits in requests]
    with opened(memcached_server) as store:
        assert [shown(decisions) for decisions in decided(store, requests)] == expected


def test_places_in_a_queue_are_given_out_in_order(memcached_server: Server) -> None:
    """Each waits for those before it, and who finds no place is rejected."""
    limit = limit_of("10/second", {"name": "leaky-bucket", "mode": "queue"})
    with opened(memcached_server) as store:
        found = [d for (d,) in decided(store, [[hit(limit)]] * 15)]
    assert [d.delay_us for d in found[:10]] == [100_000 * i for i in range(10)]
    assert [d.allowed for d in found] == [True] * 10 + [False] * 5


def test_who_loses_a_race_goes_again_and_the_others_stand(memcached_server: Server) -> None:
    """Somebody else is faster at the key of one client: what that request had written elsewhere is not left twice."""
    shared, single = limit_of("1000/day", "gcra"), limit_of("10/day")
    requests = [[hit(shared), hit(single, client=f"c{i}")] for i in range(20)]
    with opened(memcached_server) as other:
        rivals = [lambda: None, lambda: other.apply([hit(single, client="c7")], NOW)]
        store = Meddling(memcached_server, PATIENT, lambda: rivals and rivals.pop(0)())
        found = decided(store, requests)
        assert [all(d.allowed for d in decisions) for decisions in found] == [True] * 20
        assert [decisions[1].remaining for decisions in found] == [9] * 7 + [8] + [9] * 12
        assert other.apply([hit(shared, 0)], NOW)[0].remaining == 980
        assert not rivals


def test_those_who_lose_all_their_races_are_rejected_and_nothing_is_left_consumed(memcached_server: Server) -> None:
    """The store answers, so it did not fail: a rejection for each of them, in their time."""
    raced, wide = limit_of("1000000/day", "gcra"), limit_of("1000000/day")
    with opened(memcached_server) as other:
        store = Meddling(memcached_server, 400_000, lambda: other.apply([hit(raced)], NOW))
        found = decided(store, [[hit(wide), hit(raced)]] * 20)
        assert {(d.allowed, d.remaining) for decisions in found for d in decisions} == {(False, 0)}
        assert other.apply([hit(wide, 0)], NOW)[0].remaining == 1_000_000


def test_a_value_that_is_no_state_fails_the_requests_for_it_only(memcached_server: Server) -> None:
    """Also those that go together with one that cannot be decided."""
    shared, single = limit_of("1000/day", "gcra"), limit_of("10/day")
    requests = [[hit(shared), hit(single, client=f"c{i}")] for i in range(10)]
    with opened(memcached_server) as store:
        store.apply([hit(single, client="c4")], NOW)
        (name,) = names_in(memcached_server, rule_of(single))
        ask(memcached_server, b"set %b 0 60 3\r\nbad" % name, b"STORED")

        async def scenario() -> list[Any]:
            return await asyncio.gather(*(store.aapply(hits, NOW) for hits in requests), return_exceptions=True)

        found = asyncio.run(closing(store, scenario()))
        assert [isinstance(each, StoreError) for each in found] == [i == 4 for i in range(10)]
        assert "no state" in str(found[4])
        assert store.apply([hit(shared, 0)], NOW)[0].remaining == 991


def test_who_waits_and_is_cancelled_consumes_nothing_and_holds_up_nobody(memcached_server: Server) -> None:
    """Neither the one that all others wait for, nor one of these."""
    limit = limit_of("1000/day")

    async def scenario(store: MemcachedStore, cancelled: Callable[[int], bool]) -> list[int]:
        await store.aping()
        tasks = [asyncio.ensure_future(store.aapply([hit(limit, 10)], NOW)) for _ in range(10)]
        await asyncio.sleep(0)
        for i, task in enumerate(tasks):
            if cancelled(i):
                task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [each[0].remaining for each in found if not isinstance(each, BaseException)]

    with opened(memcached_server) as store:
        run: Callable[[Awaitable[list[int]]], list[int]] = lambda call: asyncio.run(closing(store, call))  # noqa: E731
        assert run(scenario(store, lambda i: i == 0)) == list(range(990, 900, -10))
        assert run(scenario(store, lambda i: i > 4)) == list(range(900, 850, -10))
        assert store.apply([hit(limit, 0)], NOW)[0].remaining == 860


@pytest.mark.parametrize("turns", range(12))
def test_a_loop_whose_tasks_are_all_cancelled_goes_on(memcached_server: Server, turns: int) -> None:
    """At whatever moment somebody cancels all there is, the store's own tasks too: who comes next is decided."""
    limit = limit_of("1000/day")

    async def scenario(store: MemcachedStore) -> int:
        await store.aapply([hit(limit, 0)], NOW)
        requests = asyncio.gather(*(store.aapply([hit(limit)], NOW) for _ in range(10)), return_exceptions=True)
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(requests, *others, return_exceptions=True)
        return (await store.aapply([hit(limit)], NOW))[0].remaining

    with opened(memcached_server, timeout_us=1_000_000) as store:
        assert 989 <= asyncio.run(closing(store, scenario(store))) <= 999


def test_many_long_names_go_in_one_trip(memcached_server: Server) -> None:
    """As many requests as there may be in one try, each with the longest names that a client can make us send."""
    shared = limit_of("100000/day", "gcra")
    singles = [limit_of("10/day", spec) for spec in ("gcra", "fixed-window", "sliding-window-counter")]
    requests = [
        [hit(shared), *(hit(limit, client=f"{i}".rjust(150, "x")) for limit in singles)] for i in range(TOGETHER * 2)
    ]
    with opened(memcached_server) as store:
        found = decided(store, requests)
    assert all(d.allowed for decisions in found for d in decisions)
    assert [decisions[0].remaining for decisions in found] == [99_999 - i for i in range(len(requests))]
