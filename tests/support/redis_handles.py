"""Helpers to open a Redis store on a server of the tests, and to read the statistics of that server."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import redis
from servers import HOST, Server

from ratelimit_mw.decision import Charge, Correction, Decision, Hit, Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.testing.store_suite import ALGORITHMS as ALGORITHMS
from ratelimit_mw.testing.store_suite import limit_of as limit_of

PATIENT = 5_000_000  # microseconds: for tests that are not about time, on a machine that may be busy
NOW = 1_767_268_820_500_000

Send = Callable[[Hit], list[Decision]]


class Listening(Protocol):
    """A server, or a proxy before it."""

    @property
    def port(self) -> int: ...


def address(server: Listening, query: str = "") -> str:
    return f"redis://{HOST}:{server.port}/0{query}"


@contextmanager
def opened(server: Server, query: str = "", timeout_us: int = PATIENT) -> Iterator[RedisStore]:
    """A store, closed in the end; on event loops a test closes it itself."""
    store = open_store(address(server, query), timeout_us)
    assert isinstance(store, RedisStore)
    try:
        yield store
    finally:
        store.close()


def answers(store: Store) -> bool:
    """Whether the server takes hits."""
    try:
        store.ping()
    except StoreError:
        return False
    return True


def ways_of(store: Store) -> dict[str, Send]:
    """Both ways to one store. That on an event loop closes its connections after each call."""

    async def ask(one: Hit) -> list[Decision]:
        try:
            return await store.aapply([one])
        finally:
            await store.aclose()

    return {"blocking": lambda one: store.apply([one]), "on a loop": lambda one: asyncio.run(ask(one))}


@contextmanager
def ways(address: str, timeout_us: int = PATIENT) -> Iterator[list[Send]]:
    """Both ways to a store, each with connections of its own."""
    blocking, awaiting = open_store(address, timeout_us), open_store(address, timeout_us)
    with asyncio.Runner() as runner:
        yield [lambda one: blocking.apply([one]), lambda one: runner.run(awaiting.aapply([one]))]
        runner.run(awaiting.aclose())
        blocking.close()


@contextmanager
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(host=HOST, port=server.port) as found:
        yield found


def calls(server: redis.Redis) -> dict[str, int]:
    """How often each command was called since the statistics were reset, those of this very question left out."""
    stats: Any = server.info("commandstats")
    asked = ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_client|setinfo")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items() if name not in asked}


def hit(limit: Limit, client: str = "ip=192.0.2.7", cost: int = 1) -> Hit:
    return Hit(limit, limit.prefix + client, cost)


def undo(one: Hit, at: int, delay: int = 0) -> Correction:
    return Correction(one.limit, one.key, one.cost, Charge(at, one.cost, delay))
