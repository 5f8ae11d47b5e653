"""Servers that are silent, gone, back again, or talk nonsense: an error in time, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from own_time import hurried
from redis_budget import BUDGET, Took
from redis_handles import PATIENT, address, hit, limit_of, opened
from servers import HOST, Server, free_port, redis_running

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.testing.store_suite import WAYS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    with redis_running(tmp_path) as found:
        yield found


@pytest.mark.slow
def test_a_silent_server_is_given_up_in_time(server: Server) -> None:
    """A stopped process keeps its connections open: calls end by their budget, on old and new connections."""
    with opened(server) as store:
        store.apply([hit(limit_of("5/minute"))])
        server.pause()
        with hurried(store, BUDGET):
            for _ in range(2):
                took = Took(store)
                with pytest.raises(StoreError):
                    store.apply([hit(limit_of("5/minute"))])
                took.check()
        server.resume()
        limit = limit_of("5/minute")
        with opened(server) as patient:
            assert patient.apply([hit(limit)])[0].remaining == 4


@pytest.mark.slow
def test_a_silent_server_does_not_stall_the_loop(server: Server) -> None:
    """While requests wait for a stopped server the loop turns on, and each fails by its budget."""

    async def run() -> None:
        store = open_store(address(server), 50_000)
        assert isinstance(store, RedisStore)
        for _ in range(4):
            took, turns = Took(store), 0
            hits = (store.aapply([hit(limit_of("5/minute"))]) for _ in range(20))
            calls = asyncio.gather(*hits, return_exceptions=True)
            while not calls.done():
                await asyncio.sleep(0)
                turns += 1
            assert all(isinstance(error, StoreError) for error in await calls)
            took.check()
            assert turns > 20
        await store.aclose()

    server.pause()
    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_was_away_is_used_again_at_once(server: Server, way: str) -> None:
    """Calls fail while it is dead; the first one after its return is answered, though all connections are stale."""
    limit, handle = limit_of("5/minute"), WAYS[way](open_store(address(server), PATIENT))

    def meanwhile(act: Callable[[], None]) -> None:
        """Do something while the event loop runs, if there is one."""
        act() if way == "sync" else handle._runner.run(asyncio.to_thread(act))  # type: ignore[attr-defined]

    handle.hit(limit)
    meanwhile(server.kill)
    with pytest.raises(StoreError, match=r"refused|lost|Error 111"):
        handle.hit(limit)
    meanwhile(server.start)
    assert handle.hit(limit).remaining == 4
    meanwhile(server.kill)
    meanwhile(server.start)
    assert handle.hit(limit).remaining == 4
    handle.close()


@contextmanager
def talking(reply: bytes) -> Iterator[int]:
    """A port that answers everything with the same bytes, or hangs up."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(5)
                    peer.recv(65_536)
                    peer.sendall(reply)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
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


def test_nonsense_is_an_error() -> None:
    """A reply that is no Redis reply: ``StoreError``, blocking and on a loop."""
    for reply, way in itertools.product(ODD, WAYS):
        with talking(reply * 3) as port:
            handle = WAYS[way](open_store(f"redis://{HOST}:{port}/0", PATIENT))
            with pytest.raises(StoreError):
                handle.hit(limit_of("5/minute"))
            handle.close()


def test_a_server_that_may_want_tls_is_named_so() -> None:
    """It hangs up, or sends an alert of TLS, before its first reply. Redis and Memcached, blocking and on a loop."""
    for scheme, reply, way in itertools.product(("redis", "memcached"), (b"", b"\x15\x03\x03\x00\x02\x02\x46"), WAYS):
        with talking(reply) as port:
            handle = WAYS[way](open_store(f"{scheme}://{HOST}:{port}", PATIENT))
            with pytest.raises(StoreError, match=r"for a server with TLS, write rediss:// or memcacheds://"):
                handle.hit(limit_of("5/minute"))
            handle.close()


def test_no_listener_is_an_error() -> None:
    """A port without a listener, and a path without a socket."""
    for place in (f"redis://{HOST}:{free_port()}/0", "unix:///nowhere/redis.sock"):
        for way in WAYS.values():
            with closing(way(open_store(place))) as handle, pytest.raises(StoreError):
                handle.hit(limit_of("5/minute"))
