"""The table of the PostgreSQL store: all or nothing, races, expiry, and the connections of processes and loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from own_time import way_of
from postgres_handles import NOW, address, ask, hit, opened
from servers import HOST, PostgresServer, wait_for
from tables import each

from ratelimit_mw import StoreError
from ratelimit_mw.decision import Hit
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores import check_store_url, open_store
from ratelimit_mw.stores.bytecall import DAY, Write
from ratelimit_mw.stores.postgres.connection import connect
from ratelimit_mw.stores.postgres.store import PostgresCall, PostgresStore
from ratelimit_mw.stores.wire import ReplyError
from ratelimit_mw.testing.store_suite import limit_of


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[PostgresStore]:
    with opened(postgres_server) as found:
        yield found


def remaining(store: PostgresStore, *hits: Hit) -> list[int]:
    return [decision.remaining for decision in store.apply([each._replace(cost=0) for each in hits], NOW)]


class Slow:
    """A request that has read its states and writes them later."""

    def __init__(self, store: PostgresStore, *hits: Hit) -> None:
        self.call = PostgresCall(store, way_of(store), 10.0)
        loaded, _ = run_blocking(self.call.load([each.key for each in hits]))
        self.call.now = NOW
        self.decisions, self.writes = self.call.decide(hits, loaded, NOW)

    def lost(self) -> list[str]:
        return list(run_blocking(self.call.swap(self.writes)))


@pytest.mark.parametrize("changed", [1, 2])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_write_is_lost_when_one_of_its_keys_has_changed(store: PostgresStore, is_new: bool, changed: int) -> None:
    """None of the keys is written then, whether the changed one was there before or not."""
    first, second = hit(limit_of("9/minute")), hit(limit_of("9/minute", "gcra"))
    if not is_new:
        store.apply([first, second], NOW)
    before = remaining(store, first, second)
    slow = Slow(store, first, second)
    store.apply([second, first][:changed], NOW)
    assert slow.lost() == [first.key, second.key]
    assert remaining(store, second, first) == [before[1] - 1, before[0] - (changed == 2)]
    assert Slow(store, first, second).lost() == []


def test_a_key_that_is_created_during_a_write_undoes_it(postgres_server: PostgresServer, store: PostgresStore) -> None:
    """The write waits for the other transaction, and then finds a row that it has not seen."""
    known, new = hit(limit_of("9/minute")), hit(limit_of("9/minute", "gcra"))
    store.apply([known], NOW)
    slow = Slow(store, known, new)
    with psycopg.connect(address(postgres_server)) as other, ThreadPoolExecutor(1) as pool:
        row = new.key.encode(), new.limit.algorithm.dump((NOW, 3, 0, NOW)), 1, 1 << 60
        other.execute("INSERT INTO ratelimit_mw VALUES (%s, %s, %s, %s)", row)
        writing = pool.submit(slow.lost)
        wait_for(lambda: ask(postgres_server, "SELECT 1 FROM pg_locks WHERE NOT granted"), "the write to wait")
        other.commit()
        assert writing.result() == [known.key, new.key]
    assert remaining(store, known, new) == [8, 6]


def test_a_reset_is_not_undone_by_an_older_write(store: PostgresStore) -> None:
    """A request that has read its state before a reset does not bring the count back."""
    one = hit(limit_of("9/minute"))
    store.apply([one], NOW)
    slow = Slow(store, one)
    store.forget([one.key])
    assert slow.lost() == [one.key]
    assert remaining(store, one) == [9]
    assert store.list_keys(one.limit.prefix).keys == []


def test_processes_that_start_together_create_one_table(postgres_server: PostgresServer) -> None:
    """The table is not logged. A schema may be named, and applications with tables of their own share nothing."""
    ask(postgres_server, "CREATE SCHEMA IF NOT EXISTS limits")
    ready, one = threading.Barrier(8), hit(limit_of("1/minute"))

    def start(table: str) -> bool:
        with opened(postgres_server, f"?table={table}") as store:
            ready.wait()
            store.start()
            return store.apply([one], NOW)[0].allowed

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, ["limits.shop", "blog"] * 4)) == 2
    kinds = ask(postgres_server, "SELECT relpersistence FROM pg_class WHERE relname IN ('shop', 'blog')")
    assert kinds == [("u",), ("u",)]


def test_expired_rows_are_deleted(postgres_server: PostgresServer) -> None:
    """Every sixteenth write deletes up to 64 of them. Others stay."""
    with opened(postgres_server, "?table=swept") as store:
        store.start()
        ask(postgres_server, "INSERT INTO swept SELECT ('old' || n)::bytea, 'x', 1, n FROM generate_series(1, 100) n")
        left = []
        for _ in range(32):
            store.apply([hit(limit_of("9/hour", "gcra"))])  # whose rows end in no minute of the test
            left.append(ask(postgres_server, "SELECT count(*) FROM swept WHERE expires <= 100")[0][0])
        assert sorted(set(left)) == [0, 36, 100]
        assert len(store.list_keys("1|").keys) == 32


@pytest.mark.parametrize(("quota", "seconds"), [("3/minute", 20), ("3/366d", 122 * 86_400)])
def test_a_state_stays_until_its_reset(
    postgres_server: PostgresServer, store: PostgresStore, quota: str, seconds: int
) -> None:
    """And at most an eighth longer. A new row, a later write of it alone, and one with another row."""
    one, other, before = hit(limit_of(quota, "gcra")), hit(limit_of("9/minute")), time.time()
    for number, hits in enumerate(([one], [one], [one, other]), 1):
        store.apply(hits)
        ends = ask(postgres_server, "SELECT expires FROM ratelimit_mw WHERE key = %s", one.key.encode())[0][0] / 1e6
        assert before + number * seconds - 1 <= ends <= time.time() + number * seconds * 9 / 8 + 1


def test_a_damaged_state_is_an_error_of_the_store(postgres_server: PostgresServer, store: PostgresStore) -> None:
    """The error names the key, so the limiter can delete it. No other error of a statement is a lost race."""
    one = hit(limit_of("5/hour", "gcra"))
    store.apply([one], NOW)
    ask(postgres_server, "UPDATE ratelimit_mw SET data = 'nonsense' WHERE key = %s", one.key.encode())
    with pytest.raises(StoreError, match="PostgreSQL: a damaged state") as error:
        store.apply([one], NOW)
    assert error.value.keys == (one.key,)  # type: ignore[attr-defined]
    with pytest.raises(ReplyError, match="LIMIT must not be negative"):
        run_blocking(PostgresCall(store, way_of(store), 10.0).ask(b"sweep", bytes(8), b"\xff" * 8))


def test_plans_use_the_index(postgres_server: PostgresServer) -> None:
    """No statement of a request reads the whole table, even if it had no rows when the plan was made."""
    limit = limit_of("9/minute")
    find = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'planned'"
    with opened(postgres_server, "?table=planned") as store:
        store.start()
    wait_for(lambda: ask(postgres_server, find)[0][0], "the scan that made the index")
    before = ask(postgres_server, find)[0][0]
    with opened(postgres_server, "?table=planned") as store:
        for i in range(80):
            store.apply([hit(limit, client=f"{i}"), hit(limit_of("9/minute"))])
    wait_for(lambda: ask(postgres_server, find)[0][1] >= 80, "the numbers of the requests")
    assert ask(postgres_server, find)[0][0] == before


# -- connections -----------------------------------------------------------------------------------------------


def test_an_event_loop_keeps_a_connection_that_came_late(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
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
    with opened(postgres_server, timeout_us=50_000) as store:
        asyncio.run(scenario(store))
    assert len(opened_so_far) == 1


def test_a_connect_that_fails_after_the_end_of_its_store_is_no_error_of_the_loop(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it any longer."""
    threads, may_fail, errors = list[threading.Thread](), threading.Event(), list[Any]()

    def fail_late(*_: Any) -> Any:
        threads.append(threading.current_thread())
        may_fail.wait()
        raise ConnectionError("too late")

    async def scenario(store: PostgresStore) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        request = asyncio.ensure_future(store.aping())
        while not threads:
            await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(StoreError):
            await request
        may_fail.set()
        threads[0].join()
        for _ in range(3):
            await asyncio.sleep(0)

    monkeypatch.setattr("ratelimit_mw.stores.postgres.store.connect", fail_late)
    with opened(postgres_server) as store:
        asyncio.run(scenario(store))
    gc.collect()
    assert errors == []


def test_an_event_loop_is_idle_after_a_call_that_got_no_reply(
    postgres_server: PostgresServer, store: PostgresStore
) -> None:
    """It looks at the time only while a call waits."""

    async def scenario() -> None:
        clock, one = store._loop_drivers.get().clock, hit(limit_of("9/minute"))
        await store.aapply([one], NOW)
        store._seconds = 0.05
        with psycopg.connect(address(postgres_server)) as other:
            other.execute("LOCK TABLE ratelimit_mw")
            with pytest.raises(StoreError, match="within the time budget"):
                await store.aapply([one], NOW)
        async with asyncio.timeout(10):
            while clock._checks:
                await asyncio.sleep(0.01)
        await store.aclose()

    asyncio.run(scenario())


def test_what_the_buffers_of_the_system_cannot_hold_is_sent_in_parts(store: PostgresStore) -> None:
    """A thread and an event loop send the rest while they wait for the reply."""
    data = bytes(20_000_000)

    async def write(key: str) -> None:
        call = PostgresCall(store, way_of(store), 30.0)
        await call.load([key])
        assert await call.swap([Write(key, data, None, DAY)]) == ()
        assert (await call.load([key]))[0] == [data]

    async def scenario() -> None:
        await write("loop")
        await store.aclose()

    run_blocking(write("thread"))
    asyncio.run(scenario())


def test_a_host_that_no_name_server_knows_is_left_out(postgres_server: PostgresServer) -> None:
    """A machine that is gone may have no name any longer. The next one decides."""
    hosts = f"no-such-host.invalid,{HOST}:{postgres_server.port}"
    store = open_store(f"postgresql://postgres@{hosts}/postgres", 10_000_000)
    assert store.apply([hit(limit_of("5/hour"))], NOW)[0].remaining == 4
    store.close()


def test_a_connection_that_cannot_be_set_up_is_closed(postgres_server: PostgresServer) -> None:
    """Each call tries again without rights, or while the table is locked. So nothing may be left of one."""
    with psycopg.connect(address(postgres_server)) as other:
        other.execute("CREATE TABLE locked ()")
        for table, reason in {"missing.table": 'schema "missing" does not exist', "locked": "lock timeout"}.items():
            query = f"?table={table}&application_name=failed"
            with opened(postgres_server, query) as store, pytest.raises(StoreError, match=reason):
                store.ping()
        left = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'failed'"
        wait_for(lambda: not ask(postgres_server, left), "the connections to be closed")


def test_the_reason_of_a_failed_set_up_has_the_encoding_of_its_connection(postgres_server: PostgresServer) -> None:
    """The messages of a server may be in any language."""
    parameters = {"host": HOST, "port": postgres_server.port, "user": "postgres", "client_encoding": "LATIN1"}
    with pytest.raises(ConnectionError, match=r"^für ratelimit_mw keine Berechtigung$"):
        connect(parameters, "DO $$ BEGIN RAISE 'für ratelimit_mw keine Berechtigung'; END $$")


def test_a_connection_that_stays_silent_after_its_login_is_given_up(postgres_server: PostgresServer) -> None:
    """As PgBouncer before a server that is paused. Otherwise each probe would leave a thread and a connection."""
    parameters = {"host": HOST, "port": postgres_server.port, "user": "postgres"}
    with pytest.raises(ConnectionError, match="no reply within 2 s of the login"):
        connect(parameters, "SELECT pg_sleep(20)")


def test_a_session_leaves_durability_alone(store: PostgresStore) -> None:
    """A pooler may give it to other clients. An unlogged table needs no setting: its commits wait for no disk."""
    with store._open_one() as session:
        assert session.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_connection_needs_no_event_loop(postgres_server: PostgresServer) -> None:
    """With gevent, all threads are one, in which another greenlet may run a loop."""

    async def connect_on_loop() -> None:
        connect({"host": HOST, "port": postgres_server.port, "user": "postgres"}, "SELECT 1").close()

    asyncio.run(connect_on_loop())


# -- URLs ------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "postgresql:///shop?host=/run/postgresql": {"dbname": "shop", "host": "/run/postgresql"},
    "postgres://app:p%40ss@db/shop?sslmode=require": {
        "user": "app",
        "password": "p@ss",
        "dbname": "shop",
        "host": "db",
        "port": "5432",
        "sslmode": "require",
    },
    "postgresql://a:1,[::1]:2,c/shop": {"dbname": "shop", "host": "a,::1,c", "port": "1,2,5432"},
}


@each(("url", "parameters"), list(GOOD.items()))
def test_a_url_has_the_parameters_of_libpq(url: str, parameters: dict[str, str]) -> None:
    """Servers in turn, a socket, and a login with escaped characters."""
    assert check_store_url(url)[1].parameters == {"application_name": "ratelimit_mw", **parameters}
