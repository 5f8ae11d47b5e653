"""Requests of one event loop share their calls to the server, and nothing else: each is decided, and fails, alone."""

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock, patch
from weakref import ref

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
    assert (await store.aapply([hit(limit, cost=0)]))[0].remaining == 499


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
    """Cancelled requests do not cancel their call or the other requests in it. Before their call they cost nothing."""
    limit = limit_of("1000/hour", "gcra")
    tasks = [asyncio.create_task(store.aapply([hit(limit)])) for _ in range(60)]
    await asyncio.sleep(0)  # the first is out, so the others wait
    for task in tasks[::2]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in found[::2])
    assert [answer[0].remaining for answer in found[1::2]] == [*range(998, 968, -1)]  # type: ignore[index]


@on_a_loop(1.0)
async def test_a_call_that_fails_fails_its_members_only(store: RedisStore, server: redis.Redis) -> None:
    """When the connection is cut under a call, its requests fail; the next one goes over a new connection."""
    limit = limit_of("1000/hour", "gcra")
    server.client_pause(60_000, all=False)
    lost = [asyncio.create_task(store.aapply([hit(limit)])) for _ in range(10)]
    await asyncio.sleep(0.05)
    server.client_kill_filter(_type="normal", skipme=True)
    await asyncio.wait(lost)
    server.client_unpause()
    assert [type(task.exception()) for task in lost] == [StoreError] * 10
    errors = [ref(task.exception()) for task in lost]
    lost.clear()
    assert [error() for error in errors] == [None] * 10, "cycles would stay until a collection, which holds up the loop"
    with hurried(store, 5.0):
        assert (await store.aapply([hit(limit)]))[0].remaining == 999


@on_a_loop(0.2)
async def test_every_request_has_its_own_time_budget(store: RedisStore, server: redis.Redis) -> None:
    """Requests that wait for a silent server fail when they are due, each after its own 0.2 s: behind a start, too."""
    clock = way_of(store).clock

    async def timed() -> float:
        began = clock.now
        with pytest.raises(StoreError, match="time budget"):
            await store.aapply([hit(limit_of("5/hour", "gcra"))])
        return float(clock.now - began)

    server.client_pause(60_000, all=False)
    tasks = []
    for number in range(20):
        if number == 10:
            start = asyncio.create_task(store.astart())  # within a second
        tasks.append(asyncio.create_task(timed()))
        await asyncio.sleep(0.015)
    took = await asyncio.gather(*tasks)
    server.client_unpause()
    await start
    assert 0.19 < min(took) <= max(took) < 0.25, "the last one would wait for 0.5 s with the first"


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


@on_a_loop()
async def test_requests_pass_after_a_flight_was_broken_off(store: RedisStore, server: redis.Redis) -> None:
    """By uvloop, which raises an error for a connection that has just ended, and by code that cancels all tasks."""
    connections, limit = way_of(store).connections, limit_of("5/minute", "gcra")
    (connection,) = [each.channel.connection for each in connections._senders.values()]
    transport = Mock(**{"write.side_effect": RuntimeError("the handler is closed")})
    with patch.object(connection, "_transport", transport), pytest.raises(StoreError):
        await store.aapply([hit(limit)])
    connection.connection_lost(None)
    asking = asyncio.create_task(store.aapply([hit(limit)]))
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(tasks) == len([task for task in tasks if task.cancel()]) > 1
    await asyncio.wait({asking, *tasks})
    found = await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(2)))
    assert [each[0].remaining for each in found] == [4, 3]
