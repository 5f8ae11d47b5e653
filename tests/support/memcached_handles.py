"""Helpers for Memcached stores on the servers of the tests, and for their contents."""

import re
import socket
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from own_time import way_of
from servers import HOST, Server

from ratelimit_mw.decision import Charge, Correction, Decision, Hit, Limit
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.reference_store import check_equal, values_of

T = TypeVar("T")
LEGAL = re.compile(rb"[!-~]{1,250}")

PATIENT = 5_000_000  # microseconds: for tests that do not measure time, on a busy machine
NOW = 1_767_268_820_500_000
CLIENT = "ip=192.0.2.7"


def address(*servers: Server, query: str = "") -> str:
    return f"memcached://{','.join(f'{HOST}:{server.port}' for server in servers)}{query}"


@contextmanager
def opened(*servers: Server, query: str = "", timeout_us: int = PATIENT) -> Iterator[MemcachedStore]:
    """Open a store and close it at the end. On event loops a test closes the store itself."""
    store = open_store(address(*servers, query=query), timeout_us)
    assert isinstance(store, MemcachedStore)
    try:
        yield store
    finally:
        store.close()


async def closing(store: MemcachedStore, call: Awaitable[T]) -> T:
    """Await a call, then close the connections of the event loop."""
    try:
        return await call
    finally:
        await store.aclose()


def hit(limit: Limit, cost: int = 1, client: str = CLIENT) -> Hit:
    return Hit(limit, limit.prefix + client, cost)


def check_rounded(actual: Sequence[Decision], expected: Sequence[Decision], place: str) -> None:
    """Check decisions. Waits of a tiered window may be longer by a tenth of the period."""
    for own, other in zip(actual, expected, strict=True):
        most = own.source.algorithm.period // 10 * (own.source.algorithm.name == "tiered-window")
        for name, value in values_of(other).items():
            found, margin = getattr(own, name), most * (name in ("retry_us", "reset_us"))
            is_close = found == value or (found and value and value < found <= value + margin)
            check_equal(bool(is_close), True, f"{name} of {own.source}, {found} for {value}, {place}")


def undo(one: Hit, decision: Decision) -> Correction:
    return Correction(one.limit, one.key, one.cost, Charge(decision.at_us, one.cost, decision.delay_us))


def ask(server: Server, command: bytes, end: bytes) -> bytes:
    """Return the reply of a server, up to a line."""
    with socket.create_connection((HOST, server.port), 10) as connection:
        connection.sendall(command + b"\r\n")
        answer = b""
        while not answer.endswith(end + b"\r\n"):
            answer += connection.recv(65_536)
    return answer


def names_in(server: Server, holding: str = "") -> dict[bytes, int]:
    """Return the names in a server that contain a text, with their expiry (-1: never)."""
    found = {}
    # Dump the hash table, not the lists: an item that moves between two lists would be left out.
    lines = ask(server, b"lru_crawler metadump hash", b"END").splitlines()
    for line in filter(re.compile(b"key=").match, lines):  # between END and, from newer servers, OK
        fields = dict(part.split(b"=", 1) for part in line.split())
        if holding.encode() in (name := unquote_to_bytes(fields[b"key"])):
            found[name] = int(fields[b"exp"])
    return found


def value_of(server: Server, name: bytes) -> bytes:
    """Return the value of a name, or b""."""
    answer = ask(server, b"get " + name, b"END")
    head, _, rest = answer.partition(b"\r\n")
    return rest[: int(head.split()[3])] if head != b"END" else b""


def time_of(server: Server) -> int:
    """The clock of a server, which a busy machine lets lag behind, in whole seconds."""
    return int(re.search(rb"STAT time (\d+)", ask(server, b"stats", b"END"))[1])  # type: ignore[index]


def commands(server: Server) -> dict[str, int]:
    """Return how often each command was carried out. A read counts once for each name."""
    stats = dict(line.split()[1:3] for line in ask(server, b"stats", b"END").splitlines()[:-1])
    found = {name: int(stats[f"cmd_{name}".encode()]) for name in ("get", "set")}
    return found | {"incr": int(stats[b"incr_hits"]) + int(stats[b"incr_misses"])}


def rule_of(limit: Limit) -> str:
    """Return the part of all names of a limit."""
    return f"|{limit.rule}|"


def counted(store: MemcachedStore) -> list[Any]:
    """Return a list that gets an entry for each later round trip of the store."""
    trips: list[Any] = []
    pool = way_of(store).connections
    exchange = pool.exchange

    def counting(*arguments: Any) -> Any:
        trips.append(arguments[0])
        return exchange(*arguments)

    pool.exchange = counting
    return trips
