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
from redis_budget import BUDGET, SLACK, in_time
from redis_handles import PATIENT, address, client, hit, limit_of, ways
from redis_outages import clock, longest_stall
from servers import HOST, Server, unreachable

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import Store, open_store


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


def silent(name: str, port: int) -> Store:
    scheme, _ = SILENT[name]
    places = f"{HOST}:{port},localhost:{port}" if "+" in scheme else f"{HOST}:{port}"
    return open_store(f"{scheme}://ann:s3cret@{places}{'/mymaster' if 'sentinel' in scheme else ''}", 50_000)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SILENT)
def test_every_step_to_a_silent_server_is_within_the_budget(name: str) -> None:
    """Blocking: an error after 50 ms, whatever the call was at; the same for a ping."""
    with SILENT[name][1]() as port:
        store = silent(name, port)

        def measure() -> float:
            longest = 0.0
            for call in (lambda: store.apply([hit(limit_of("5/hour"))]), store.ping, lambda: store.forget(["a", "b"])):
                began = clock()
                with pytest.raises(StoreError):
                    call()
                longest = max(longest, clock() - began)
            return longest

        in_time(measure, BUDGET + SLACK)
        store.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SILENT)
def test_every_step_to_a_silent_server_leaves_the_loop_alone(name: str) -> None:
    """On a loop: an error after 50 ms for each of many requests, and the loop turns on."""

    async def asked(store: Store, call: Callable[[], Any]) -> float:
        began = clock()
        with pytest.raises(StoreError):
            await call()
        return clock() - began

    async def measure(port: int) -> float:
        store, ends = silent(name, port), asyncio.Event()
        stall = asyncio.create_task(longest_stall(ends))
        hits = [lambda i=i: store.aapply([hit(limit_of("5/hour"), str(i))]) for i in range(20)]
        waits = await asyncio.gather(*(asked(store, call) for call in (*hits, store.aping)))
        ends.set()
        await store.aclose()
        return max(*(wait - BUDGET for wait in waits), await stall)

    with SILENT[name][1]() as port:
        in_time(lambda: asyncio.run(measure(port)), SLACK)


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


@pytest.mark.thorough
def test_a_silent_name_server_blocks_no_call(names: Names, redis_server: Server) -> None:
    """Blocking and on a loop: an error in time, and one lookup for all callers. Its late result is used at once."""
    names.known["redis.test"] = [HOST]
    limit = limit_of("50/hour")
    store = open_store(f"redis://redis.test:{redis_server.port}", 50_000)

    def blocking() -> float:
        began = clock()
        with pytest.raises(StoreError, match="time budget"):
            store.apply([hit(limit)])
        return clock() - began

    async def many() -> float:
        ends = asyncio.Event()
        stall = asyncio.create_task(longest_stall(ends))
        began = clock()
        found = await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(20)), return_exceptions=True)
        took = clock() - began
        assert all(isinstance(each, StoreError) for each in found)
        assert await asyncio.wait_for(asyncio.to_thread(int), 5) == 0  # the loop's own threads are free
        ends.set()
        await store.aclose()
        return max(took - BUDGET, await stall)

    in_time(blocking, BUDGET + SLACK)
    in_time(lambda: asyncio.run(many()), SLACK)
    assert names.asked == ["redis.test"]
    names.answers.set()
    patient = open_store(f"redis://redis.test:{redis_server.port}", PATIENT)
    assert patient.apply([hit(limit)])[0].allowed
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


@pytest.mark.thorough
def test_no_thread_waits_for_the_connection_of_another(redis_server: Server) -> None:
    """Of 30 threads whose server is silent each has its answer in time: there is no pool to queue for."""
    store = open_store(address(redis_server), 50_000)

    def failing(_: int) -> float:
        began = clock()
        with pytest.raises(StoreError):
            store.apply([hit(limit_of("5/hour"))])
        return clock() - began

    def measure() -> float:
        with ThreadPoolExecutor(30) as pool:
            return max(pool.map(failing, range(30)))

    with client(redis_server) as admin:
        admin.client_pause(60_000, all=False)
        in_time(measure, BUDGET + SLACK)
        admin.client_unpause()
    store.close()
