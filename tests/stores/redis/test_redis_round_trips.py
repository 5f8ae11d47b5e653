"""Requests of one event loop share their calls to the server, and nothing else: each is decided, and fails, alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis
from own_time import hurried, way_of
from redis_handles import PATIENT, address, calls, hit, limit_of
from servers import Server

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.redis.call import HIT, Operation
from ratelimit_mw.stores.redis.errors import NotRunError
from ratelimit_mw.stores.redis.store import RedisStore


def on_a_loop(seconds: float = 5.0) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test on an event loop, with a store that has its connection and its script, and a client of its server."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(own_server: Server, server: redis.Redis) -> None:
            async def with_store() -> None:
                store = RedisStore(address(own_server), timeout_us=PATIENT)
                await store.aapply([hit(limit_of("5/minute", "gcra"))])
                with hurried(store, seconds):
                    await test(store, server)
                await store.aclose()

            asyncio.run(with_store())

        run.__doc__ = test.__doc__
        return run

    return decorate


@on_a_loop()
async def test_many_requests_share_few_calls(store: RedisStore, server: redis.Redis) -> None:
    """500 requests at the same time are a handful of commands, and a lone one is one."""
    limit = limit_of("1000/hour", "gcra")
    server.config_resetstat()
    await store.aapply([hit(limit)])
    assert calls(server)["evalsha"] == 1
    await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(500)))
    assert calls(server)["evalsha"] <= 1 + 16
    (look,) = await store.aapply([hit(limit, cost=0)])
    assert look.remaining == 499


@on_a_loop()
async def test_requests_that_share_a_call_are_decided_one_after_another(store: RedisStore, server: redis.Redis) -> None:
    """Of 100 at the same time the first 10 pass, in their order; those rejected leave their other limits alone."""
    narrow, wide = limit_of("10/hour", "gcra"), limit_of("1000/hour", "gcra")
    found = await asyncio.gather(*(store.aapply([hit(wide), hit(narrow)]) for _ in range(100)))
    assert [decisions[1].allowed for decisions in found] == [True] * 10 + [False] * 90
    assert {decisions[0].remaining for decisions in found[10:]} == {990}


@on_a_loop()
async def test_a_bad_key_fails_only_its_own_request(store: RedisStore, server: redis.Redis) -> None:
    """A key that holds something else fails the one request that needs it, not those in the same call."""
    limit = limit_of("5/hour", "gcra")
    server.lpush("rl:" + limit.prefix + "7", "not a state")
    found = await asyncio.gather(*(store.aapply([hit(limit, str(i))]) for i in range(20)), return_exceptions=True)
    assert isinstance(found.pop(7), StoreError)
    assert all(isinstance(answer, list) and answer[0].remaining == 4 for answer in found)


@on_a_loop()
async def test_a_cancelled_request_does_not_affect_others(store: RedisStore, server: redis.Redis) -> None:
    """Cancelled requests do not cancel their call or the other requests in it."""
    limit = limit_of("1000/hour", "gcra")
    tasks = [asyncio.create_task(store.aapply([hit(limit)])) for _ in range(60)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in found[::2])
    assert all(isinstance(answer, list) for answer in found[1::2])
    assert (await store.aapply([hit(limit)]))[0].allowed


@on_a_loop(1.0)
async def test_a_call_that_fails_fails_its_members_only(store: RedisStore, server: redis.Redis) -> None:
    """When the connection is cut under a call, its requests fail; the next one goes over a new connection."""
    limit = limit_of("1000/hour", "gcra")
    server.client_pause(60_000, all=False)
    lost = [asyncio.create_task(store.aapply([hit(limit)])) for _ in range(10)]
    await asyncio.sleep(0.05)
    server.client_kill_filter(_type="normal", skipme=True)
    found = await asyncio.gather(*lost, return_exceptions=True)
    server.client_unpause()
    assert all(isinstance(answer, StoreError) for answer in found)
    with hurried(store, 5.0):
        assert (await store.aapply([hit(limit)]))[0].remaining == 999


@on_a_loop(0.2)
async def test_every_request_has_its_own_time_budget(store: RedisStore, server: redis.Redis) -> None:
    """Requests that wait for a silent server fail when they are due, each after its own 0.2 s, not one much later."""

    clock = way_of(store).clock

    async def timed() -> float:
        began = clock.now
        with pytest.raises(StoreError, match="time budget"):
            await store.aapply([hit(limit_of("5/hour", "gcra"))])
        return float(clock.now - began)

    server.client_pause(60_000, all=False)
    tasks = []
    for _ in range(20):
        tasks.append(asyncio.create_task(timed()))
        await asyncio.sleep(0.015)
    took = await asyncio.gather(*tasks)
    server.client_unpause()
    assert min(took) > 0.19
    assert max(took) < 0.25, "the last one would wait for 0.5 s with the first"


@on_a_loop()
async def test_a_request_cancelled_before_its_call_consumes_nothing(store: RedisStore, server: redis.Redis) -> None:
    """Requests that were given up before they left cost nothing."""
    limit = limit_of("1000/hour", "gcra")
    first, second = (asyncio.create_task(store.aapply([hit(limit)])) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()  # the first is out, so it waits
    assert (await first)[0].remaining == 999
    assert (await store.aapply([hit(limit, cost=0)]))[0].remaining == 999


@on_a_loop()
async def test_a_call_whose_deadline_has_passed_is_not_sent(store: RedisStore, server: redis.Redis) -> None:
    """Two that wait while another one is out: no server has run them, and the next request is decided."""
    way, limit = way_of(store), limit_of("5/minute", "gcra")
    first = asyncio.ensure_future(store.aapply([hit(limit)]))
    await asyncio.sleep(0)
    late = [Operation(HIT, [hit(limit)], [b"rl:" + hit(limit).key.encode()], slot=0) for _ in range(2)]
    await way.connections.ask_each(late, way.clock.now - 1)
    assert [type(each.result) for each in late] == [NotRunError] * 2
    assert (await first)[0].remaining == 4
    last = [asyncio.ensure_future(store.aapply([hit(limit)])) for _ in range(2)]
    await asyncio.sleep(0)
    way.connections.close()  # those that are out or wait leave before
    assert [each[0].remaining for each in await asyncio.gather(*last)] == [3, 2]
