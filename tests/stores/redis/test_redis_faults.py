"""Servers that are silent, gone, back again, or talk nonsense: an error in time, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from own_time import hurried
from redis_budget import BUDGET, SLACK, in_time
from redis_handles import address, client, hit, limit_of, opened
from redis_outages import clock, longest_stall
from servers import HOST, Server, free_port, redis_running

from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.store import RedisStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    with redis_running(tmp_path) as found:
        yield found


def failing(store: RedisStore, problem: str = ".") -> float:
    """Seconds until a call has failed."""
    start = clock()
    with pytest.raises(StoreError, match=problem):
        store.apply([hit(limit_of("5/minute"))])
    return clock() - start


async def afailing(store: RedisStore, problem: str = ".") -> float:
    start = clock()
    with pytest.raises(StoreError, match=problem):
        await store.aapply([hit(limit_of("5/minute"))])
    return clock() - start


def test_a_silent_server_is_given_up_in_time(server: Server) -> None:
    """A stopped process keeps its connections open: blocking calls end by their budget, on old and new connections."""
    with opened(server) as store:
        store.apply([hit(limit_of("5/minute"))])
        server.pause()
        with hurried(store, BUDGET):
            in_time(lambda: failing(store), BUDGET + SLACK)
        server.resume()
        limit = limit_of("5/minute")
        with opened(server) as patient:
            assert patient.apply([hit(limit)])[0].remaining == 4


def test_logging_in_counts_as_part_of_the_call(tmp_path: Path) -> None:
    """A server that is silent when a password is sent takes no longer than one that is silent later."""
    with redis_running(tmp_path, "--requirepass", "s3cret") as server:
        store = open_store(f"redis://:s3cret@{HOST}:{server.port}/3", 50_000)
        assert isinstance(store, RedisStore)
        server.pause()
        in_time(lambda: failing(store), BUDGET + SLACK)
        store.close()


def test_a_silent_server_does_not_stall_the_loop(server: Server) -> None:
    """While requests wait for a stopped server the loop turns on, and each fails by its budget."""

    async def measure() -> float:
        store = open_store(address(server), 50_000)
        assert isinstance(store, RedisStore)
        ends = asyncio.Event()
        stall = asyncio.create_task(longest_stall(ends))
        waits = []
        for _ in range(4):
            waits += await asyncio.gather(*(afailing(store) for _ in range(20)))
        ends.set()
        await store.aclose()
        return max(await stall, max(waits) - BUDGET)

    server.pause()
    in_time(lambda: asyncio.run(measure()), SLACK)


def test_a_server_that_was_away_is_used_again_at_once(server: Server) -> None:
    """Calls fail while it is dead; the first one after its return is answered, though all connections are stale."""
    limit = limit_of("5/minute")
    with opened(server) as store:
        store.apply([hit(limit)])
        server.kill()
        failing(store, "refused|lost|Error 111")
        server.start()
        assert store.apply([hit(limit)])[0].remaining == 4
        server.kill()
        server.start()
        assert store.apply([hit(limit)])[0].remaining == 4


def test_a_server_that_was_away_is_used_again_at_once_on_a_loop(server: Server) -> None:
    """The same for a loop that turns on meanwhile."""
    limit = limit_of("5/minute")

    async def on_a_loop(store: RedisStore) -> None:
        await store.aapply([hit(limit)])
        await asyncio.to_thread(server.kill)
        await afailing(store, "refused|lost|Error 111")
        await asyncio.to_thread(server.start)
        assert (await store.aapply([hit(limit)]))[0].remaining == 4
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert (await store.aapply([hit(limit)]))[0].remaining == 4
        await store.aclose()

    with opened(server) as store:
        asyncio.run(on_a_loop(store))


def test_a_full_server_is_an_error_and_changes_nothing(server: Server) -> None:
    """Out of memory: ``StoreError`` for a hit that would write, a decision for a rejected hit; later all hits work."""
    limit = limit_of("1/hour")
    with opened(server) as store, client(server) as redis:
        store.apply([hit(limit)])
        redis.config_set("maxmemory", 1)
        with pytest.raises(StoreError, match="OOM"):
            store.apply([hit(limit, "another"), hit(limit_of("5/hour"))])
        assert not store.apply([hit(limit)])[0].allowed
        redis.config_set("maxmemory", 0)
        assert store.apply([hit(limit, "another")])[0].allowed


@contextmanager
def talking(reply: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A port that answers everything with the same bytes, or hangs up; and the bytes that it got."""
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                heard.append(peer.recv(65_536))
                peer.sendall(reply)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


# redis-py says its name first; to that, too, the answer is this one.
ODD = [
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"+OK\r\n",
    b"*1\r\n:5\r\n",
    b"*2\r\n:5\r\n:x\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
]


@pytest.mark.parametrize("reply", [odd * 3 for odd in ODD])
def test_nonsense_is_an_error(reply: bytes) -> None:
    """A reply that is no Redis reply: ``StoreError``, blocking and on a loop."""
    with talking(reply) as (port, _):
        store = open_store(f"redis://{HOST}:{port}/0", 500_000)
        assert isinstance(store, RedisStore)
        failing(store)

        async def on_a_loop() -> None:
            await afailing(store)
            await store.aclose()

        asyncio.run(on_a_loop())
        store.close()


def test_no_listener_is_an_error() -> None:
    """A port without a listener, and a path without a socket."""
    for place in (f"redis://{HOST}:{free_port()}/0", "unix:///nowhere/redis.sock"):
        store = open_store(place)
        assert isinstance(store, RedisStore)
        failing(store)
        asyncio.run(afailing(store))


def test_a_call_whose_answer_is_lost_is_not_sent_again(server: Server) -> None:
    """The connection is cut after the call was taken: the hit counts once at most, and the caller gets an error."""
    limit = limit_of("5/minute")
    with opened(server) as store, client(server) as redis, asyncio.Runner() as runner:
        ways: dict[str, Callable[[Hit], list[Decision]]] = {
            "blocking": lambda one: store.apply([one]),
            "on a loop": lambda one: runner.run(store.aapply([one])),
        }
        for name, send in ways.items():
            send(hit(limit, name))
            redis.client_pause(60_000, all=False)
            cutter = threading.Timer(0.1, redis.client_kill_filter, kwargs={"_type": "normal", "skipme": True})
            cutter.start()
            with pytest.raises(StoreError):
                send(hit(limit, name))
            cutter.join()
            redis.client_unpause()
            assert send(hit(limit, name, cost=0))[0].remaining >= 3
        runner.run(store.aclose())
