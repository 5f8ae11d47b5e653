"""Requests for the same keys: those of one event loop share turns, and those of processes race."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from memcached_handles import NOW, PATIENT, address, closing, commands, hit, opened
from servers import Server, wait_for
from store_races import in_processes

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.errors import StoreError
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import ALGORITHMS, limit_of

SLOTS = Rule(name="slots", limits="20 concurrent")
CLIENT = {"ip": "192.0.2.7"}


def together(store: MemcachedStore, requests: list[Any]) -> list[Any]:
    """Return the decisions or the errors of requests that start at the same time, on an event loop of their own."""

    async def start() -> list[Any]:
        return await asyncio.gather(*(store.aapply(hits, NOW) for hits in requests), return_exceptions=True)

    return asyncio.run(closing(store, start()))


def test_requests_for_one_key_lose_no_race(memcached_server: Server) -> None:
    """Of 30 requests the limit allows 25, in their order. All that wait for the first one are written at once."""
    for spec in ALGORITHMS:
        limit = limit_of("25/day", spec)
        before = commands(memcached_server)
        with opened(memcached_server) as store:
            found = [d for (d,) in together(store, [[hit(limit)]] * 30)]
        assert [(d.allowed, d.remaining) for d in found] == [(i < 25, max(24 - i, 0)) for i in range(30)], spec
        writes = commands(memcached_server)["set"] - before["set"]
        if spec == "tiered-window":  # it counts first, in two tiers, and refunds
            assert writes == 30 * 2
        else:
            assert writes == 2, spec


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


def test_a_call_whose_task_is_cancelled_before_its_first_step_frees_its_keys(memcached_server: Server) -> None:
    """The waiting calls of its turn fail, and the next request is decided."""

    async def scenario(store: MemcachedStore) -> tuple[list[Any], int]:
        limit = limit_of("1000/day")
        await store.aapply([hit(limit, 0)], NOW)
        requests = [asyncio.ensure_future(store.aapply([hit(limit)], NOW)) for _ in range(3)]
        known = asyncio.all_tasks()
        while not (leading := asyncio.all_tasks() - known):
            await asyncio.sleep(0)
        for task in leading:
            task.cancel()
        found = await asyncio.gather(*requests, return_exceptions=True)
        return [type(each) for each in found], (await store.aapply([hit(limit)], NOW))[0].remaining

    with opened(memcached_server, timeout_us=1_000_000) as store:
        found, remaining = asyncio.run(closing(store, scenario(store)))
    assert (found, remaining) == ([list, StoreError, StoreError], 998)


def hold_slots(place: str, results: Any) -> None:
    """Take and return slots in four threads. Then wait until all of them are free."""
    limiter = Limiter([SLOTS], store=place, settings=Settings(store_timeout=PATIENT / 1e6))

    def work(_: int) -> None:
        for _ in range(15):
            limiter.slots.hold(verdict := limiter.hit(CLIENT), limiter.rules)
            limiter.conclude(verdict, 200)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    wait_for(lambda: limiter.peek(CLIENT, cost=0).decisions[0].remaining == 20, "the slots to be returned")
    results.put(True)
    limiter.close()


@pytest.mark.slow
def test_racing_processes_return_all_slots(memcached_server: Server) -> None:
    """Of 20 slots that four processes of four threads race for, 20 are free at the end."""
    place = address(memcached_server)
    assert all(in_processes(hold_slots, *[(place,)] * 4))
    limiter = Limiter([SLOTS], store=place, settings=Settings(store_timeout=PATIENT / 1e6))
    assert limiter.peek(CLIENT, cost=0).decisions[0].remaining == 20
    limiter.close()
