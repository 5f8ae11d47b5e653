"""The Memcached store when servers pause, die or come back: errors within the time budget, and no foreign replies.

The time of a call is read from the clocks of the store, which a busy machine does not change.
"""

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import NOW, PATIENT, address, closing, hit, opened
from servers import HOST, Server, memcached_running, unreachable, wait_for

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.blocking import run_blocking
from ratelimit_mw.stores.memcached.client.servers import MemcachedServer
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_suite import WAYS, limit_of

BUDGET_US = 50_000
BUDGET, GRACE = 0.050, 0.010


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Start a server that a test may stop and kill."""
    with memcached_running(tmp_path) as found:
        yield found


def rejected_in_time(store: MemcachedStore, call: Callable[[], Any], message: str = "Memcached") -> None:
    """Make a blocking call that raises ``StoreError`` within its budget, by the clock of the store."""
    began = store._threads.clock.now
    with pytest.raises(StoreError, match=message):
        call()
    assert store._threads.clock.now - began <= BUDGET + GRACE


async def greeted(store: MemcachedStore) -> None:
    """Wait until the connection of the event loop is open."""
    while True:
        try:
            return await store.aping()
        except StoreError:
            await asyncio.sleep(0.01)


async def failing(store: MemcachedStore, hits: list[Any]) -> None:
    with pytest.raises(StoreError, match="Memcached"):
        await store.aapply(hits, NOW)


@pytest.mark.slow
def test_a_paused_server_is_an_error_within_the_budget(server: Server) -> None:
    """With an open connection and without one. The limits work again after the pause."""
    limit = limit_of("1000/hour", "tiered-window")
    with opened(server, timeout_us=BUDGET_US) as store:
        wait_for(lambda: works(store, limit), "a first answer")
        server.pause()
        for call in (lambda: store.apply([hit(limit)], NOW), store.ping, lambda: store.forget([limit.prefix])):
            rejected_in_time(store, call)
        server.resume()
        wait_for(lambda: works(store, limit), "an answer after the pause")


def works(store: MemcachedStore, limit: Any) -> bool:
    try:
        return store.apply([hit(limit, 0)], NOW)[0].allowed
    except StoreError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("clients", [20, 1])
def test_a_paused_server_does_not_stall_the_event_loop(server: Server, clients: int) -> None:
    """Twenty requests at once fail within the budget while the event loop keeps running, including those that wait for
    another request at their key."""
    limit = limit_of("1000/hour")

    async def scenario(store: MemcachedStore) -> None:
        await greeted(store)
        clock, turns = store._loops.get().clock, 0
        server.pause()
        began = clock.now
        requests = asyncio.gather(*(failing(store, [hit(limit, client=f"c{i % clients}")]) for i in range(20)))
        while not requests.done():
            await asyncio.sleep(0)
            turns += 1
        await requests
        assert clock.now - began <= BUDGET + GRACE
        assert turns > 20

    with opened(server, timeout_us=BUDGET_US) as store:
        asyncio.run(closing(store, scenario(store)))


def test_late_replies_are_dropped(server: Server) -> None:
    """A reply to a request of the pause is dropped, so each later request gets the count of its own key."""
    limits = [limit_of(f"{amount}/hour") for amount in range(100, 120)]

    async def scenario(store: MemcachedStore) -> list[int]:
        await greeted(store)
        server.pause()
        await asyncio.gather(*(failing(store, [hit(limit, 0)]) for limit in limits))
        server.resume()
        return [await remaining(store, limit) for limit in limits]

    async def remaining(store: MemcachedStore, limit: Any) -> int:
        while True:
            try:
                return (await store.aapply([hit(limit, 0)], NOW))[0].remaining
            except StoreError:
                await asyncio.sleep(0.01)

    with opened(server, timeout_us=BUDGET_US) as store:
        assert asyncio.run(closing(store, scenario(store))) == list(range(100, 120))


def test_dead_idle_connections_fail_one_call_only(server: Server, memcached_server: Server) -> None:
    """Of ten idle connections to a silent server, one call uses one and closes all. Other servers keep theirs."""
    limit = limit_of("1000/hour")
    with opened(server, timeout_us=BUDGET_US) as store:
        wait_for(lambda: works(store, limit), "a first answer")
        (place,) = store.rendezvous.servers
        channels: list[Any] = [
            store._threads.connections.channel(each) for each in (place, MemcachedServer(HOST, memcached_server.port))
        ]
        for each in channels:
            each.close()
            each._idle[:] = [run_blocking(each._connect(store._threads.clock.now + 20)) for _ in range(10)]
        server.pause()
        with pytest.raises(StoreError):
            store.apply([hit(limit)], NOW)
        assert [len(each._idle) for each in channels] == [0, 10]
        server.resume()
        wait_for(lambda: works(store, limit), "an answer after the pause")
        assert len(channels[0]._idle) == 1


def test_a_killed_server_is_an_error_until_it_is_back(server: Server) -> None:
    """No old connection is used again, so the first call after a restart succeeds."""
    limit = limit_of("1000/hour")
    with opened(server) as store:
        for _ in range(3):
            assert store.apply([hit(limit)], NOW)[0].remaining == 999
            server.kill()
            rejected_in_time(store, lambda: store.apply([hit(limit)], NOW))
            server.start()


def test_an_unnoticed_restart_is_no_error(server: Server) -> None:
    """The store notices that an idle connection was closed, blocking and on an event loop."""
    limit = limit_of("1000/hour")

    async def scenario(store: MemcachedStore) -> list[bool]:
        found = []
        for _ in range(3):
            found += [decision.allowed for decision in await store.aapply([hit(limit)], NOW)]
            found += [decision.allowed for decision in store.apply([hit(limit)], NOW)]
            server.kill()
            server.start()
            await asyncio.sleep(0.01)
        return found

    with opened(server) as store:
        assert asyncio.run(closing(store, scenario(store))) == [True] * 6


def test_keys_do_not_move_when_a_server_is_killed(server: Server, memcached_server: Server) -> None:
    """Keys of the killed server are errors. They do not move to the other server, which would give a fresh quota."""
    limit = limit_of("1000/hour")
    with opened(server, memcached_server) as store:
        clients = [f"c{i}" for i in range(40)]
        for client in clients:
            store.apply([hit(limit, client=client)], NOW)
        server.kill()
        found = [count_or_none(store, limit, client) for client in clients]
        assert set(found) == {999, None}
        assert 5 < found.count(None) < 35
        with pytest.raises(StoreError):
            store.ping()
        with opened(memcached_server) as alone:
            alone.ping()


def count_or_none(store: MemcachedStore, limit: Any, client: str) -> int | None:
    try:
        return store.apply([hit(limit, 0, client)], NOW)[0].remaining
    except StoreError:
        return None


@pytest.mark.slow
def test_threads_do_not_wait_for_each_other_when_the_server_pauses(server: Server) -> None:
    """Eight threads with the same key each fail within the budget: no thread waits for another one."""
    limit = limit_of("1000/hour")
    with opened(server, timeout_us=BUDGET_US) as store, ThreadPoolExecutor(8) as pool:
        wait_for(lambda: works(store, limit), "a first answer")
        server.pause()
        list(pool.map(lambda _: rejected_in_time(store, lambda: store.apply([hit(limit)], NOW)), range(8)))
        server.resume()


def test_an_unknown_host_name_is_a_store_error() -> None:
    """The error of the resolver becomes a ``StoreError``."""
    store = MemcachedStore("no-such-host.invalid")
    with pytest.raises(StoreError, match="Memcached"):
        store.ping()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_name_lookup_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A silent resolver delays no call beyond its budget, and one thread waits for it."""
    answered, threads = threading.Event(), threading.active_count()

    def silent(host: str, *rest: Any, flags: int = 0, **named: Any) -> Any:
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "it is a name")
        answered.wait(10)
        raise socket.gaierror(socket.EAI_FAIL, "unknown name")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    store = MemcachedStore(f"slow-{way}.invalid", timeout_us=BUDGET_US)  # lookups of one name share their thread
    handle = WAYS[way](store)
    for _ in range(2):
        rejected_in_time(store, handle.ping, "within the time budget")
    assert not answered.is_set()
    assert threading.active_count() <= threads + 1
    answered.set()
    handle.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_silent_address_of_a_name_leaves_time_for_the_next(
    memcached_server: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The first of two addresses drops all packets, and the store decides with the second."""
    look_up, port = socket.getaddrinfo, memcached_server.port

    def resolved(host: str, *arguments: Any, flags: int = 0, **options: Any) -> Any:
        found = ["127.0.0.9", HOST] if host == "cache.test" and not flags else [host]
        return [each for one in found for each in look_up(one, *arguments, flags=flags, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with unreachable("127.0.0.9", port):
        handle = WAYS[way](MemcachedStore(f"cache.test:{port}", timeout_us=1_000_000))
        limit = limit_of("5/hour")
        assert handle.apply([hit(limit)], NOW)[0].remaining == 4
        handle.close()


def test_a_limiter_goes_on_without_its_memcached(server: Server) -> None:
    """No request raises an exception. The process counts on its own until the server is back."""
    limiter = Limiter([Rule(name="api", limits="3/hour")], store=address(server), settings=Settings())
    server.kill()
    assert [limiter.hit({"ip": "192.0.2.7"}).allowed for _ in range(5)] == [True] * 3 + [False] * 2
    server.start()
    wait_for(lambda: limiter.hit({"ip": "192.0.2.7"}).allowed, "the server's own count")
    limiter.close()


# -- servers that are no Memcached -----------------------------------------------------------------------------


@contextmanager
def impostor(answer: bytes) -> Iterator[str]:
    """Return the address of a listener that replies to everything with the same bytes."""
    listener = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                if connection.recv(65_536):
                    connection.sendall(answer)
                    connection.settimeout(5)
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"{HOST}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_server_that_is_no_memcached_is_an_error() -> None:
    """No such reply counts as an empty key, and one that repeats the login does not bring it into the message."""
    replies = (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"END\r\nEND\r\n", b"SERVER_ERROR busy\r\n", b"END")
    repeating = (b"ERROR app s3cr3t\r\n", b"hello app s3cr3t\r\n", b"STORED\r\napp s3cr3t\r\n")
    for reply, way in itertools.product((*replies, *repeating), WAYS):
        with impostor(reply) as place:
            login = "app:s3cr3t@" if reply in repeating else ""
            handle = WAYS[way](open_store(f"memcached://{login}{place}", 500_000))
            with pytest.raises(StoreError, match="Memcached") as caught:
                handle.apply([hit(limit_of("5/hour"), 0)], NOW)
            assert "s3cr3t" not in str(caught.value)
            handle.close()


def test_a_ping_rejects_other_replies_than_stored() -> None:
    """Memcached replies STORED and nothing else."""
    replies = (b"hello\r\n", b"VERSION 1.6.18\r\n", b"ERROR\r\n", b"\r\n", b"STORED\r\nmore\r\n")
    for reply, way in itertools.product(replies, WAYS):
        with impostor(reply) as place:
            handle = WAYS[way](MemcachedStore(place, timeout_us=PATIENT))
            with pytest.raises(StoreError, match=r"Memcached( replied|: the server sent a reply)"):
                handle.ping()
            handle.close()
