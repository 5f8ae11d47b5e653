"""Names, connections, certificates, logins, other threads: all that a call may wait for is within its time budget."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from redis_budget import Took
from redis_handles import PATIENT, address, client, hit, limit_of, ways
from servers import HOST, Server, unreachable

from ratelimit_mw.decision import Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.redis.store import RedisStore


@contextmanager
def mute() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


SILENT: dict[str, tuple[str, Callable[[], Any]]] = {
    "connecting": ("redis", unreachable),
    "encrypting": ("rediss", mute),
    "logging in": ("redis", mute),
    "finding the primary": ("redis+sentinel", mute),
    "connecting to sentinels": ("redis+sentinel", unreachable),
    "learning the slots": ("redis+cluster", mute),
    "connecting to a cluster": ("redis+cluster", unreachable),
}


def opened(url: str, timeout_us: int = 50_000) -> RedisStore:
    store = open_store(url, timeout_us)
    assert isinstance(store, RedisStore)
    return store


def silent(name: str, port: int) -> RedisStore:
    scheme, _ = SILENT[name]
    places = f"{HOST}:{port},localhost:{port}" if "+" in scheme else f"{HOST}:{port}"
    return opened(f"{scheme}://ann:s3cret@{places}{'/mymaster' if 'sentinel' in scheme else ''}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SILENT)
def test_every_step_to_a_silent_server_is_within_the_budget(name: str) -> None:
    """Whatever a call waits for, it ends with its budget. Of many requests of a loop each does, and the loop turns."""
    with SILENT[name][1]() as port:
        store = silent(name, port)
        for call in (lambda: store.apply([hit(limit_of("5/hour"))]), store.ping, lambda: store.forget(["a", "b"])):
            took = Took(store)
            with pytest.raises(StoreError):
                call()
            took.check()
        asyncio.run(ask_many(store, [*(hit(limit_of("5/hour"), str(i)) for i in range(20))]))
        store.close()


async def ask_many(store: RedisStore, hits: list[Hit]) -> None:
    """Send requests and a ping at once to a silent server, and close the store."""
    took, turns = Took(store), 0
    calls = asyncio.gather(*(store.aapply([one]) for one in hits), store.aping(), return_exceptions=True)
    while not calls.done():
        await asyncio.sleep(0)
        turns += 1
    assert all(isinstance(error, StoreError) for error in await calls)
    took.check()
    assert turns > 20
    await store.aclose()


class Names:
    """A resolver with its own names, which blocks until ``answers`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.answers = threading.Event()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, port: int, *args: Any, flags: int = 0, **options: Any) -> Any:
        if host not in self.known or flags:
            return self._real(host, port, *args, flags=flags, **options)
        self.asked.append(host)
        self.answers.wait(20)
        return [found for each in self.known[host] for found in self._real(each, port, *args, **options)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names(monkeypatch)
    yield found
    found.answers.set()


@pytest.mark.slow
def test_a_silent_name_server_blocks_no_call(names: Names, redis_server: Server) -> None:
    """Blocking and on a loop: an error in time, and one lookup for all callers. Its late result is used at once."""
    names.known["redis.test"] = [HOST]
    store = opened(f"redis://redis.test:{redis_server.port}")
    one, took = hit(limit_of("50/hour")), Took(store)
    with pytest.raises(StoreError, match="time budget"):
        store.apply([one])
    took.check()

    async def many() -> None:
        asking = asyncio.create_task(ask_many(store, [one] * 20))
        assert await asyncio.wait_for(asyncio.to_thread(int), 5) == 0  # the loop's own threads are free
        await asking

    asyncio.run(many())
    assert names.asked == ["redis.test"]
    names.answers.set()
    patient = opened(f"redis://redis.test:{redis_server.port}", PATIENT)
    assert patient.apply([one])[0].allowed
    patient.close()


def test_a_name_that_stands_for_nothing_is_an_error(names: Names) -> None:
    """The error contains the name."""
    with ways("redis://nowhere.invalid:1") as both:
        for send in both:
            with pytest.raises(StoreError, match=r"nowhere\.invalid:1"):
                send(hit(limit_of("5/hour")))


def test_of_several_addresses_of_a_name_a_silent_one_is_left(names: Names, redis_server: Server) -> None:
    """The first of two never answers, nor does it take the time of the second."""
    with unreachable("127.0.0.9", redis_server.port):
        names.known["redis.test"] = ["127.0.0.9", HOST]
        names.answers.set()
        with ways(f"redis://redis.test:{redis_server.port}", 1_000_000) as both:
            assert [send(hit(limit_of("5/hour")))[0].remaining for send in both] == [4, 4]


@pytest.mark.slow
def test_no_thread_waits_for_the_connection_of_another(redis_server: Server) -> None:
    """Of 30 threads whose server is silent each has its answer in time: there is no pool to queue for."""
    store = opened(address(redis_server))

    def fails(_: int) -> None:
        took = Took(store)
        with pytest.raises(StoreError):
            store.apply([hit(limit_of("5/hour"))])
        took.check()

    with client(redis_server) as admin, ThreadPoolExecutor(30) as pool:
        admin.client_pause(60_000, all=False)
        list(pool.map(fails, range(30)))
        admin.client_unpause()
    store.close()
