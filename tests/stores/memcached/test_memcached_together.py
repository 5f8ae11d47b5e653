"""Requests of one event loop for the same keys share batches, as if they came one after the other."""

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

TOGETHER = 200
TRIES = 20


async def all_of(store: MemcachedStore, requests: Sequence[Sequence[Hit]]) -> list[list[Decision]]:
    """Return the decisions of requests that start at the same time."""
    return await asyncio.gather(*(store.aapply(hits, NOW) for hits in requests))


def decided(store: MemcachedStore, requests: Sequence[Sequence[Hit]]) -> list[list[Decision]]:
    """Decide requests on an event loop of their own."""
    return asyncio.run(closing(store, all_of(store, requests)))


def shown(decisions: Sequence[Decision]) -> list[tuple[Any, ...]]:
    return [(d.allowed, d.remaining, d.retry_us, d.reset_us, d.at_us, d.delay_us, d.source.rule) for d in decisions]


@pytest.mark.parametrize("spec", StoreSuite.algorithms, ids=str)
def test_requests_for_one_key_share_a_batch(memcached_server: Server, spec: Any) -> None:
    """The first request goes alone, and all others share the next batch: two writes count all of them."""
    limit = limit_of("1000/day", spec)
    before = commands(memcached_server)
    with opened(memcached_server) as store:
        results = decided(store, [[hit(limit)]] * TOGETHER)
    assert [(d.allowed, d.remaining) for (d,) in results] == [(True, 999 - i) for i in range(TOGETHER)]
    after = commands(memcached_server)
    tiers = 2 if spec == "tiered-window" else 1
    assert after["set"] - before["set"] == 2 * tiers
    assert after["incr"] - before["incr"] in (0, 2 * tiers)


def test_200_requests_for_one_key_are_allowed_within_the_budget(memcached_server: Server) -> None:
    """Within the default budget of 50 ms no request is rejected under a wide limit, and none fails."""
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


def test_a_batch_decides_as_if_requests_came_one_after_the_other(memcached_server: Server) -> None:
    """With several limits, shadow limits, different costs and few keys, the decisions are those of the memory store."""
    for seed in range(5):
        chance, memory, quotas = random.Random(seed), open_store("memory://"), ("5/minute", "40/hour", "1000/day")
        limits = [limit_of(chance.choice(quotas), spec, shadow=chance.random() < 0.2) for spec in StoreSuite.algorithms]
        requests = [
            [
                hit(limit, chance.choice((0, 1, 1, 2, 7)), f"c{chance.randrange(3)}")
                for limit in chance.sample(limits, 3)
            ]
            for _ in range(300)
        ]
        expected = [shown(memory.apply(hits, NOW)) for hits in requests]
        with opened(memcached_server) as store:
            assert [shown(decisions) for decisions in decided(store, requests)] == expected, seed


def test_places_in_a_queue_are_given_out_in_order(memcached_server: Server) -> None:
    """Each request waits for the requests before it. A request without a place is rejected."""
    limit = limit_of("10/second", {"name": "leaky-bucket", "mode": "queue"})
    with opened(memcached_server) as store:
        found = [d for (d,) in decided(store, [[hit(limit)]] * 15)]
    assert [d.delay_us for d in found[:10]] == [100_000 * i for i in range(10)]
    assert [d.allowed for d in found] == [True] * 10 + [False] * 5


def test_only_the_losing_call_of_a_batch_is_decided_again(memcached_server: Server) -> None:
    """Another client is faster at the key of one request. The other writes of that request are undone."""
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


def test_a_batch_that_loses_all_races_is_rejected_and_consumes_nothing(memcached_server: Server) -> None:
    """The store replied, so it did not fail: each request is rejected within its time budget."""
    raced, wide = limit_of("1000000/day", "gcra"), limit_of("1000000/day")
    with opened(memcached_server) as other:
        store = Meddling(memcached_server, 400_000, lambda: other.apply([hit(raced)], NOW))
        found = decided(store, [[hit(wide), hit(raced)]] * 20)
        assert {(d.allowed, d.remaining) for decisions in found for d in decisions} == {(False, 0)}
        assert other.apply([hit(wide, 0)], NOW)[0].remaining == 1_000_000


def test_a_value_that_is_no_state_fails_only_the_requests_for_its_key(memcached_server: Server) -> None:
    """Requests in the same batch are decided."""
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


def test_a_cancelled_request_consumes_nothing_and_delays_no_other(memcached_server: Server) -> None:
    """Neither the request under way nor a waiting request."""
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


def test_an_event_loop_goes_on_after_all_its_tasks_were_cancelled(memcached_server: Server) -> None:
    """All tasks are cancelled at different moments, including those of the store. The next request is decided."""

    async def scenario(store: MemcachedStore, turns: int) -> int:
        limit = limit_of("1000/day")
        await store.aapply([hit(limit, 0)], NOW)
        requests = asyncio.gather(*(store.aapply([hit(limit)], NOW) for _ in range(10)), return_exceptions=True)
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(requests, *others, return_exceptions=True)
        return (await store.aapply([hit(limit)], NOW))[0].remaining

    for turns in range(12):
        with opened(memcached_server, timeout_us=1_000_000) as store:
            assert 989 <= asyncio.run(closing(store, scenario(store, turns))) <= 999, turns


def test_many_long_names_fit_in_one_batch(memcached_server: Server) -> None:
    """A batch of the largest size, with the longest names that a client can cause."""
    shared = limit_of("100000/day", "gcra")
    singles = [limit_of("10/day", spec) for spec in ("gcra", "fixed-window", "sliding-window-counter")]
    requests = [
        [hit(shared), *(hit(limit, client=f"{i}".rjust(150, "x")) for limit in singles)] for i in range(TOGETHER * 2)
    ]
    with opened(memcached_server) as store:
        found = decided(store, requests)
    assert all(d.allowed for decisions in found for d in decisions)
    assert [decisions[0].remaining for decisions in found] == [99_999 - i for i in range(len(requests))]
