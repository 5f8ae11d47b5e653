"""Helpers for PostgreSQL stores on the servers of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from servers import HOST, PostgresServer

from ratelimit_mw.decision import Hit, Limit
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.postgres.store import PostgresStore

PATIENT = 10_000_000  # microseconds: for tests that do not measure time, on a busy machine
NOW = 1_767_268_820_500_000
CLIENT = "ip=192.0.2.7"


def address(server: PostgresServer, query: str = "") -> str:
    return f"postgresql://postgres@{HOST}:{server.port}/postgres{query}"


@contextmanager
def opened(server: PostgresServer, query: str = "", timeout_us: int = PATIENT) -> Iterator[PostgresStore]:
    """Open a store and close it at the end. On event loops a test closes the store itself."""
    store = open_store(address(server, query), timeout_us)
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        store.close()


def hit(limit: Limit, cost: int = 1, client: str = CLIENT) -> Hit:
    return Hit(limit, limit.prefix + client, cost)


def ask(server: PostgresServer, statement: str, *parameters: Any) -> list[Any]:
    """Return the rows of a statement."""
    with psycopg.connect(address(server), autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []
