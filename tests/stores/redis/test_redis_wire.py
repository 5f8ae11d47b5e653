"""The commands on the wire: one per call, and none twice."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from own_time import hurried
from redis_handles import PATIENT, Send, address, client, hit, limit_of, ways
from redis_proxy import Proxy
from servers import HOST, Server, redis_running, wait_for

from ratelimit_mw.decision import Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import RedisStore, Store, open_store
from ratelimit_mw.testing.store_suite import WAYS


@pytest.fixture
def store(proxy: Proxy) -> Iterator[Store]:
    """A store behind the proxy. On event loops a test closes it itself."""
    with closing(open_store(address(proxy), PATIENT)) as found:
        yield found


def passes(send: Send, one: Hit) -> bool | None:
    """None for an error."""
    with suppress(StoreError):
        return send(one)[0].allowed
    return None


def test_a_call_is_one_command(proxy: Proxy) -> None:
    """EVALSHA, or EVAL for a new script: a new connection without a login costs no command either."""
    with ways(address(proxy)) as both:
        for send in both:
            for names in {b"EVALSHA", b"EVAL"}, {b"EVALSHA"}:
                proxy.heard.clear()
                send(hit(limit_of("5/hour")))
                assert {command[0] for command in proxy.heard} <= names
            assert len(proxy.heard) == 1


def test_nothing_is_sent_twice_when_answers_are_lost(proxy: Proxy) -> None:
    """Swallowed or cut off after the server has the call, at random: each hit was heard once, and counts once."""
    chance, limit = random.Random(5), limit_of("5/hour")
    with ways(address(proxy), 300_000) as both:
        for i, send in enumerate(both):
            wait_for(lambda send=send: passes(send, hit(limit)), "a first answer")
            for j in range(12):
                one = hit(limit, f"ip=10.{i}.0.{j}")
                if chance.random() < 0.5:
                    proxy.swallows = chance.random() < 0.3
                    proxy.hears = lambda _: None if proxy.swallows else proxy.cut()
                passes(send, one)
                proxy.swallows, proxy.hears = False, lambda _: None
                assert proxy.count(one.key) <= 1
    with ways(address(proxy)) as (send, _):
        assert all(send(hit(limit, f"ip=10.{i}.0.{j}", cost=0))[0].remaining >= 4 for i in (0, 1) for j in range(12))


def test_scripts_are_flushed_in_the_midst_of_load(proxy: Proxy, store: Store, redis_server: Server) -> None:
    """1,000 hits of threads and a loop during SCRIPT FLUSH: exact, and the script is sent only after NOSCRIPT."""
    limit, ends = limit_of("500/day"), threading.Event()

    def flush() -> None:
        with client(redis_server) as admin:
            while not ends.wait(0.005):
                admin.script_flush()

    async def many() -> int:
        found = 0
        for _ in range(25):
            answers = await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(20)))
            found += sum(decisions[0].allowed for decisions in answers)
            await asyncio.sleep(0.005)
        await store.aclose()
        return found

    threading.Thread(target=flush, daemon=True).start()
    with ThreadPoolExecutor(5) as pool:
        on_a_loop = pool.submit(asyncio.run, many())
        passed = sum(pool.map(lambda _: store.apply([hit(limit)])[0].allowed, range(500)))
        assert passed + on_a_loop.result() == 500
    ends.set()
    names = [command[0] for command in proxy.heard]
    assert 0 < names.count(b"EVAL") < names.count(b"EVALSHA")


def test_dead_connections_fail_one_call_only(proxy: Proxy, store: Store) -> None:
    """A machine that died sends no farewell. Of ten idle connections one is found out by a call, and all are left."""
    limit = limit_of("100/hour")
    with ThreadPoolExecutor(10) as pool, closing(WAYS["async"](store)) as handle:
        proxy.hears = lambda _: time.sleep(0.02)  # so that all are needed at the same time
        list(pool.map(lambda _: store.apply([hit(limit)]), range(10)))
        handle.hit(limit)
        proxy.hears = lambda _: None
        for send in (lambda: store.apply([hit(limit)])[0], lambda: handle.hit(limit)):
            proxy.fall_silent()
            with hurried(store, 0.3), pytest.raises(StoreError):
                send()
            assert send().allowed


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_own", [False, True])
def test_a_server_that_became_a_replica_is_left(
    proxy: Proxy, redis_server: Server, tmp_path: Path, way: str, is_own: bool
) -> None:
    """Its name leads to another server by now. Its open connections do not, so the first call closes them."""
    limit = limit_of("100/hour")
    clients: Any = (redis.Redis(port=proxy.port), redis.asyncio.Redis(port=proxy.port))
    with redis_running(tmp_path) as old, client(old) as admin, clients[0]:
        proxy.server_port = old.port
        own = RedisStore(client=clients[0], aclient=clients[1], timeout_us=PATIENT)
        store: Any = own if is_own else open_store(address(proxy), PATIENT)
        store.end, store.aend = bool, clients[1].aclose  # on its event loop
        with closing(store), closing(WAYS[way](store)) as handle:
            handle.hit(limit)
            proxy.server_port = redis_server.port
            admin.replicaof(HOST, proxy.port)
            with pytest.raises(StoreError, match="READONLY"):
                handle.hit(limit)
            assert [handle.hit(limit).remaining for _ in range(2)] == [99, 98]
            handle.end()


@pytest.mark.slow
def test_a_call_after_a_replica_was_left_ends_within_its_budget(
    proxy: Proxy, redis_server: Server, tmp_path: Path
) -> None:
    """The client of the application has no time limit to connect again."""
    limit = limit_of("100/hour")

    def is_free() -> bool:
        """The one connection of the client is no longer taken by the thread that connects."""
        with suppress(redis.ConnectionError):
            return bool(own.ping())
        return False

    with redis_running(tmp_path) as old, client(old) as admin, redis.Redis(port=proxy.port, max_connections=1) as own:
        proxy.server_port = old.port
        with closing(RedisStore(client=own, timeout_us=PATIENT)) as store:
            store.apply([hit(limit)])
            admin.replicaof(HOST, redis_server.port)
            with pytest.raises(StoreError, match="READONLY"):
                store.apply([hit(limit)])
            proxy.swallows = True
            with hurried(store, 0.3), pytest.raises(StoreError, match="time budget"):
                store.apply([hit(limit)])
            proxy.swallows = False
            proxy.cut()
            wait_for(is_free, "the connection is free")


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_has_replied_is_not_taken_for_tls(proxy: Proxy, store: Store, way: str) -> None:
    """It is cut in a later call, so the server speaks without TLS."""
    with closing(WAYS[way](store)) as handle:
        handle.hit(limit_of("100/hour"))
        proxy.hears = lambda _: proxy.cut()
        with pytest.raises(StoreError) as caught:
            handle.hit(limit_of("100/hour"))
        assert "TLS" not in str(caught.value)


def test_clients_that_go_away_cost_no_connections(proxy: Proxy, store: Store, redis_server: Server) -> None:
    """30 requests that are cancelled while their call is out: the line stays, for their calls and the next ones."""
    limit = limit_of("100/hour")

    async def run() -> int:
        await store.aapply([hit(limit)])
        heard, released = threading.Event(), threading.Event()

        def hold(_: object) -> None:
            heard.set()
            released.wait(20)

        proxy.hears = hold
        with client(redis_server) as admin:
            before = admin.info("stats")["total_connections_received"]
            for _ in range(30):
                heard.clear()
                released.clear()
                task = asyncio.create_task(store.aapply([hit(limit)]))
                assert await asyncio.to_thread(heard.wait, 20)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                released.set()
            assert (await store.aapply([hit(limit, cost=0)]))[0].remaining < 99
            made = admin.info("stats")["total_connections_received"] - before
        await store.aclose()
        return int(made)

    assert asyncio.run(run()) == 0
