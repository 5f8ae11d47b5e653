"""The PostgreSQL store when its server pauses, dies or comes back: errors within the budget, and no foreign replies.

The time of a call is read from the clocks of the store, which a busy machine does not change.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from postgres_handles import NOW, hit, opened
from servers import HOST, PostgresServer, postgres_running, unreachable, wait_for

from ratelimit_mw import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.postgres.sessions import connect
from ratelimit_mw.stores.postgres.store import PostgresStore
from ratelimit_mw.testing.store_suite import WAYS, limit_of

pytestmark = pytest.mark.slow

BUDGET_US = 50_000
BUDGET, GRACE = 0.050, 0.010


@pytest.fixture(scope="module")
def whole() -> Iterator[PostgresServer]:
    """A server that the tests of this file stop and kill."""
    with postgres_running() as found:
        yield found


@pytest.fixture
def server(whole: PostgresServer) -> Iterator[PostgresServer]:
    yield whole
    whole.resume()


def fails_in_time(store: PostgresStore, call: Any, message: str = "PostgreSQL") -> None:
    began = store._threads.clock.now
    with pytest.raises(StoreError, match=message):
        call()
    assert store._threads.clock.now - began <= BUDGET + GRACE


def works(store: PostgresStore, limit: Any) -> bool:
    try:
        return store.apply([hit(limit, 0)], NOW)[0].allowed
    except StoreError:
        return False


def test_a_paused_server_is_an_error_within_the_budget(server: PostgresServer) -> None:
    """With an open connection and without one, even for threads with one key. The limits work again after the pause."""
    limit = limit_of("1000/hour")
    with opened(server, timeout_us=BUDGET_US) as store, ThreadPoolExecutor(8) as pool:
        wait_for(lambda: works(store, limit), "a first reply")
        server.pause()
        for call in (lambda: store.apply([hit(limit)], NOW), store.ping, lambda: store.forget([limit.prefix])):
            fails_in_time(store, call)
        list(pool.map(lambda _: fails_in_time(store, lambda: store.apply([hit(limit)], NOW)), range(8)))
        server.resume()
        wait_for(lambda: works(store, limit), "a reply after the pause")


@pytest.mark.parametrize("clients", [20, 1])
def test_a_paused_server_does_not_stall_the_event_loop(server: PostgresServer, clients: int) -> None:
    """Twenty requests at once fail within the budget while the loop keeps running, including those that wait for a key.

    A late reply is dropped: each request after the pause gets the count of its own key.
    """
    limits = [limit_of(f"{amount}/hour") for amount in range(100, 120)]

    async def failing(store: PostgresStore, client: int) -> None:
        with pytest.raises(StoreError, match="PostgreSQL"):
            await store.aapply([hit(limits[0], client=f"c{client}")], NOW)

    async def left(store: PostgresStore, limit: Any) -> int:
        while True:
            try:
                return (await store.aapply([hit(limit, 0)], NOW))[0].remaining
            except StoreError:
                await asyncio.sleep(0.01)

    async def scenario(store: PostgresStore) -> None:
        await left(store, limits[0])
        clock, turns = store._loops.get().clock, 0
        server.pause()
        began = clock.now
        requests = asyncio.gather(*(failing(store, i % clients) for i in range(20)))
        while not requests.done():
            await asyncio.sleep(0)
            turns += 1
        await requests
        assert clock.now - began <= BUDGET + GRACE
        assert turns > 20
        server.resume()
        assert [await left(store, limit) for limit in limits] == list(range(100, 120))
        await store.aclose()

    with opened(server, timeout_us=BUDGET_US) as store:
        asyncio.run(scenario(store))


def test_an_event_loop_keeps_a_connection_that_came_late(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes longer to connect than the budget of a call is reached by a later call."""
    limit, may_connect, opened_so_far = limit_of("1000/hour"), threading.Event(), list[Any]()

    def connect_late(*arguments: Any) -> Any:
        opened_so_far.append(arguments)
        may_connect.wait()
        return connect(*arguments)

    async def scenario(store: PostgresStore) -> None:
        with pytest.raises(StoreError, match="within the time budget"):
            await store.aapply([hit(limit)], NOW)
        may_connect.set()
        while True:
            with suppress(StoreError):
                await store.aapply([hit(limit, 0)], NOW)
                break
        await store.aclose()

    monkeypatch.setattr("ratelimit_mw.stores.postgres.store.connect", connect_late)
    with opened(server, timeout_us=BUDGET_US) as store:
        asyncio.run(scenario(store))
    assert len(opened_so_far) == 1


def test_a_server_that_was_killed_is_an_error_until_it_is_back(server: PostgresServer) -> None:
    """After a restart, the first call of a thread succeeds, and the table, which is not logged, is empty."""
    limit = limit_of("1000/hour")
    with opened(server) as store:
        for _ in range(2):
            assert store.apply([hit(limit)], NOW)[0].remaining == 999
            server.kill()
            with pytest.raises(StoreError, match="PostgreSQL: "):
                store.apply([hit(limit)], NOW)
            server.start()


def test_a_restart_between_calls_is_no_error(server: PostgresServer) -> None:
    """The store notices that an idle connection was closed, blocking and on an event loop."""
    limit = limit_of("1000/hour")

    async def scenario(store: PostgresStore) -> list[int]:
        found = []
        for _ in range(2):
            found += [decision.remaining for decision in await store.aapply([hit(limit)], NOW)]
            found += [decision.remaining for decision in store.apply([hit(limit)], NOW)]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(0.01)
        await store.aclose()
        return found

    with opened(server) as store:
        assert asyncio.run(scenario(store)) == [999, 998] * 2


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_connecting_shows_no_password(server: PostgresServer, way: str) -> None:
    """An unknown host, a database that is not there, and a port without a listener."""
    for place in ("no-such-host.invalid", f"{HOST}:{server.port}", f"{HOST}:1"):
        handle = WAYS[way](open_store(f"postgresql://app:secret@{place}/nowhere", 10_000_000))
        with pytest.raises(StoreError, match="PostgreSQL: ") as error:
            handle.ping()
        assert "secret" not in str(error.value)
        assert place.partition(":")[0] in str(error.value)
        handle.close()


def test_a_host_that_no_name_server_knows_is_left_out(server: PostgresServer) -> None:
    """A machine that is gone may have no name any longer. The next one decides."""
    hosts = f"no-such-host.invalid,{HOST}:{server.port},{'x' * 70}.invalid"
    store = open_store(f"postgresql://postgres@{hosts}/postgres", 10_000_000)
    assert store.apply([hit(limit_of("5/hour"))], NOW)[0].remaining == 4
    store.close()


def test_a_connection_that_cannot_be_set_up_is_closed(server: PostgresServer) -> None:
    """A user without rights fails at each attempt, so nothing may be left of one."""
    opened_ones: list[psycopg.Connection[Any]] = []

    def set_up(connection: psycopg.Connection[Any]) -> None:
        opened_ones.append(connection)
        connection.execute("SELECT * FROM missing")

    parameters = {"host": HOST, "port": str(server.port), "user": "postgres", "dbname": "postgres"}
    with pytest.raises(ConnectionError, match="missing"):
        connect(parameters, set_up)
    assert [each.closed for each in opened_ones] == [True]


@pytest.mark.parametrize("way", WAYS)
def test_a_host_that_does_not_reply_ends_with_the_budget(way: str) -> None:
    """A thread connects, so neither a name server nor a host that drops packets delays a request."""
    with unreachable() as port:
        store = PostgresStore(f"postgresql://app@{HOST}:{port}/shop", BUDGET_US)
        handle = WAYS[way](store)
        fails_in_time(store, handle.ping, "within the time budget")
        handle.close()
