"""Servers that are silent, slow, killed, back again, or of another kind: an error in time, and no foreign reply.

The time of a call is read from the clocks of the store, which a busy machine does not change.
"""

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from own_time import way_of
from redis_handles import PATIENT, hit, limit_of
from servers import HOST, Server, free_port, memcached_running, postgres_running, redis_running, unreachable, wait_for

from ratelimit_mw.decision import Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import Store, connecting, drivers, open_store
from ratelimit_mw.stores.budget import LoopClock
from ratelimit_mw.stores.memcached.protocol import ReplyReader
from ratelimit_mw.stores.wire import LoopConnection
from ratelimit_mw.testing.store_suite import WAYS

BUDGET_US = 50_000
BUDGET, GRACE = 0.050, 0.010
RUNNING: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "redis": redis_running,
    "memcached": memcached_running,
    "postgres": lambda folder: postgres_running(),
}
URLS = {"redis": "redis://{}:{}", "memcached": "memcached://{}:{}", "postgres": "postgresql://postgres@{}:{}/postgres"}


class Scene(NamedTuple):
    """A server that a test may pause and kill, and its URL."""

    server: Server
    url: str


@pytest.fixture(scope="module", params=RUNNING)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with RUNNING[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield Scene(server, URLS[request.param].format(HOST, server.port))


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    yield shared
    shared.server.resume()
    if shared.server.ended():
        shared.server.start()


class Took:
    """The time on the clock of this thread, or of its running event loop, from here on."""

    def __init__(self, store: Any) -> None:
        self._clock = way_of(store).clock
        self._began = self._clock.now

    def check(self) -> None:
        assert self._clock.now - self._began <= BUDGET + GRACE


def fails_in_time(store: Store, call: Callable[[], object], message: str = "") -> None:
    took = Took(store)
    with pytest.raises(StoreError, match=message or None):
        call()
    took.check()


async def all_fail_in_time(store: Store, hits: list[Hit]) -> None:
    """Send requests and a ping at once. The event loop turns meanwhile."""
    took, turns = Took(store), 0
    calls = asyncio.gather(*(store.aapply([one]) for one in hits), store.aping(), return_exceptions=True)
    while not calls.done():
        await asyncio.sleep(0)
        turns += 1
    assert {isinstance(error, StoreError) for error in await calls} == {True}
    took.check()
    assert turns > 20


def works(store: Store, one: Hit) -> bool:
    with suppress(StoreError):
        return store.apply([one._replace(cost=0)])[0].allowed
    return False


# -- paused and killed ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_paused_server_is_an_error_within_the_budget(scene: Scene) -> None:
    """With an open connection, without one, and for threads with one key. The limits work again after the pause."""
    one = hit(limit_of("1000/hour"))
    with closing(open_store(scene.url, BUDGET_US)) as store, ThreadPoolExecutor(8) as pool:
        wait_for(lambda: works(store, one), "a first reply")
        scene.server.pause()
        for call in (lambda: store.apply([one]), store.ping, lambda: store.forget([one.key])):
            fails_in_time(store, call)
        list(pool.map(lambda _: fails_in_time(store, lambda: store.apply([one])), range(8)))
        scene.server.resume()
        wait_for(lambda: works(store, one), "a reply after the pause")


@pytest.mark.slow
@pytest.mark.parametrize("clients", [20, 1])
def test_a_paused_server_does_not_stall_the_event_loop(scene: Scene, clients: int) -> None:
    """Twenty requests at once fail within the budget while the loop keeps running, including those that wait for a key.

    A late reply is dropped: each request after the pause gets the count of its own key.
    """
    limits = [limit_of(f"{amount}/hour") for amount in range(100, 120)]

    async def left(store: Store, one: Hit) -> int:
        while True:
            with suppress(StoreError):
                return (await store.aapply([one._replace(cost=0)]))[0].remaining
            await asyncio.sleep(0.01)

    async def run(store: Store) -> list[int]:
        try:
            await left(store, hit(limits[0]))
            scene.server.pause()
            await all_fail_in_time(store, [hit(limits[i % clients], "c") for i in range(20)])
            scene.server.resume()
            return [await left(store, hit(limit)) for limit in limits]
        finally:
            await store.aclose()

    with closing(open_store(scene.url, BUDGET_US)) as store:
        assert asyncio.run(run(store)) == list(range(100, 120))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_server_is_an_error_until_it_is_back(scene: Scene, way: str) -> None:
    """The first call after a restart is decided, whether a call has noticed the end of the connections or not."""
    limit = limit_of("1000/hour")
    store: Any = open_store(scene.url, PATIENT)
    store.act, store.aact = lambda act: act(), asyncio.to_thread  # while the event loop runs, if there is one
    with closing(WAYS[way](store)) as handle:
        for _ in range(2):
            assert handle.hit(limit, None).remaining == 999
            handle.act(scene.server.kill)
            with pytest.raises(StoreError, match=r"^(Redis|Memcached|PostgreSQL): "):
                handle.hit(limit, None)
            handle.act(scene.server.start)
            assert handle.hit(limit, None).remaining == 999
            for act in (scene.server.kill, scene.server.start):
                handle.act(act)


# -- each step to a server -----------------------------------------------------------------------------------------


@contextmanager
def mute() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


NO_HANDSHAKE = r"no TLS handshake within the time budget \(for a server without TLS, write redis:// or memcached://\)"
SILENT: dict[str, tuple[Callable[[], AbstractContextManager[int]], str, str]] = {
    "connecting": (unreachable, "redis://{}", ""),
    "encrypting": (mute, "rediss://ann:s3cret@{}", NO_HANDSHAKE),
    "logging in": (mute, "redis://ann:s3cret@{}", ""),
    "finding the primary": (mute, "redis+sentinel://{0},localhost:{1}/mymaster", ""),
    "connecting to sentinels": (unreachable, "redis+sentinel://{0},localhost:{1}/mymaster", ""),
    "learning the slots": (mute, "redis+cluster://ann:s3cret@{0},localhost:{1}", ""),
    "connecting to a cluster": (unreachable, "redis+cluster://{0},localhost:{1}", ""),
    "encrypting to Memcached": (mute, "memcacheds://{}?ssl_cert_reqs=none", NO_HANDSHAKE),
    "connecting to PostgreSQL": (unreachable, "postgresql://app@{}/shop", "within the time budget"),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", SILENT)
def test_every_step_to_a_silent_server_is_within_the_budget(step: str) -> None:
    """Whatever a call waits for, it ends with its budget. Of many requests of a loop each does, and the loop turns."""
    server, url, message = SILENT[step]
    one = hit(limit_of("5/hour"))

    async def many(store: Store) -> None:
        try:
            await all_fail_in_time(store, [hit(one.limit, str(i)) for i in range(20)])
        finally:
            await store.aclose()

    with server() as port, closing(open_store(url.format(f"{HOST}:{port}", port), BUDGET_US)) as store:
        for call in (lambda: store.apply([one]), store.ping, lambda: store.forget(["a", "b"])):
            fails_in_time(store, call, message)
        asyncio.run(many(store))


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
        self.answers.wait(60)
        return [found for each in self.known[host] for found in self._real(each, port, *args, **options)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names(monkeypatch)
    yield found
    found.answers.set()


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["redis", "memcached"], indirect=True)
def test_a_silent_name_server_blocks_no_call(names: Names, scene: Scene) -> None:
    """Blocking and on a loop: an error in time, and one lookup for all callers. Its late result is used at once."""
    names.known["cache.test"] = [HOST]
    url, one = scene.url.replace(HOST, "cache.test"), hit(limit_of("50/hour"))

    async def many(store: Store) -> None:
        asking = asyncio.create_task(all_fail_in_time(store, [one] * 20))
        assert await asyncio.wait_for(asyncio.to_thread(int), 20) == 0  # the loop's own threads are free
        await asking
        await store.aclose()

    with closing(open_store(url, BUDGET_US)) as store:
        for _ in range(2):
            fails_in_time(store, lambda: store.apply([one]), "time budget")
        asyncio.run(many(store))
    assert names.asked == ["cache.test"]
    names.answers.set()
    with closing(open_store(url, PATIENT)) as store:
        assert store.apply([one])[0].allowed


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["redis"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_of_several_addresses_of_a_name_a_silent_one_is_left(names: Names, scene: Scene, way: str) -> None:
    """The first of two never answers, nor does it take the time of the second."""
    names.known["cache.test"] = ["127.0.0.9", HOST]
    names.answers.set()
    with unreachable("127.0.0.9", scene.server.port):
        url = scene.url.replace(HOST, "cache.test")
        with closing(WAYS[way](open_store(url, 3_000_000))) as handle:
            assert handle.hit(limit_of("5/hour")).remaining == 4


def test_the_loop_leaves_a_socket_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a connect is given up: another connection may have the same number by then."""
    known, logged = Future[Any](), list[Any]()
    monkeypatch.setattr(connecting, "run_once", lambda *_: known)

    async def give_up(steps: int) -> None:
        def count_down(left: int) -> None:
            loop.call_soon(count_down, left - 1) if left else task.cancel()

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context))
        loop.call_soon(count_down, steps)
        work = connecting.open_connection(drivers.LoopDriver(60.0), drivers.Server(HOST, 1), None, Mock(), 60.0)
        task = asyncio.ensure_future(work)
        for found in await asyncio.gather(task, return_exceptions=True):
            getattr(found, "close", int)()
            assert not isinstance(found, ValueError)  # which a loop in debug mode has for a socket that blocks
        await drivers.forget_transports()

    with socket.create_server((HOST, 0)) as listener:
        known.set_result(([(socket.AF_INET, listener.getsockname())], None))
        for steps in range(12):
            asyncio.run(give_up(steps), debug=True)
    assert not logged


def test_a_retired_connection_closes_after_its_last_reply() -> None:
    """No call uses it any longer, and it does not outlive its store."""

    async def scenario() -> list[bool]:
        connection, transport = LoopConnection(ReplyReader(), LoopClock(60.0)), Mock()
        connection.connection_made(transport)
        flight, states = connection.send(b"delete key\r\n", 1, 60.0), list[bool]()
        for step in (connection.retire, lambda: connection.data_received(b"DELETED\r\n")):
            step()
            states += [connection.is_usable, transport.abort.called]
        return [*states, await flight == [b"DELETED"]]

    assert asyncio.run(scenario()) == [False, False, False, True, True]


def test_a_connection_detects_a_dead_server_and_sends_small_requests_at_once() -> None:
    """The options of its socket are set."""
    with connecting._new_socket(socket.AF_INET) as plain:
        for option in ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY)):
            assert plain.getsockopt(*option)


def test_a_socket_is_closed_after_its_loop_has_ended() -> None:
    """No loop closes it then, and Python would warn of it."""

    async def build() -> drivers.LoopDriver:
        return drivers.LoopDriver(60.0)

    plain = socket.socket()
    asyncio.run(build()).drop(plain)
    assert plain.fileno() == -1


def test_a_server_that_is_not_there_is_an_error() -> None:
    """The error names the place, and shows no password. A port without a listener, no socket, and an unknown name."""
    nowhere, port = "no-such-host.invalid", free_port()
    urls = ["redis://app:s3cret@{}", "memcached://{}", "postgresql://app:s3cret@{}/shop"]
    places = {url.format(place): place for url in urls for place in (nowhere, f"{HOST}:{port}")}
    places["unix:///nowhere/redis.sock"] = places["memcached+unix:///nowhere/redis.sock"] = "/nowhere/redis.sock"
    for (url, place), way in itertools.product(places.items(), WAYS.values()):
        with closing(way(open_store(url, PATIENT))) as handle:
            with pytest.raises(StoreError, match=place.partition(":")[0]) as caught:
                handle.hit(limit_of("5/hour"))
            assert "s3cret" not in str(caught.value)
            assert str(caught.value).splitlines() == [str(caught.value)]


# -- servers of another kind ---------------------------------------------------------------------------------------


@contextmanager
def talking(reply: bytes) -> Iterator[str]:
    """The place of a listener that answers everything with the same bytes, and hangs up."""

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(20)
                    peer.recv(65_536)
                    peer.sendall(reply)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"{HOST}:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
ODD = {
    "redis://{}": [b"", HTTP, b"+OK\r\n", b"*1\r\n:5\r\n", b"*2\r\n:5\r\n:x\r\n", b"$-1\r\n", b"*-1\r\n"],
    "memcached://{}": [HTTP, b"END\r\nEND\r\n", b"SERVER_ERROR busy\r\n", b"END"],
}
NOT_STORED = [b"hello\r\n", b"VERSION 1.6.18\r\n", b"ERROR\r\n", b"\r\n", b"STORED\r\nmore\r\n"]


def test_a_server_of_another_kind_is_an_error() -> None:
    """No such reply is a state."""
    for url, replies in ODD.items():
        for reply, way in itertools.product(replies, WAYS.values()):
            with (
                talking(reply) as place,
                closing(way(open_store(url.format(place), PATIENT))) as handle,
                pytest.raises(StoreError),
            ):
                handle.hit(limit_of("5/hour"))
    for reply, way in itertools.product(NOT_STORED, WAYS.values()):
        with (
            talking(reply) as place,
            closing(way(open_store(f"memcached://{place}", PATIENT))) as handle,
            pytest.raises(StoreError, match=r"Memcached( replied|: the server sent a reply)"),
        ):
            handle.ping()


def test_a_server_that_may_want_tls_is_named_so() -> None:
    """It hangs up, or sends an alert of TLS, before its first reply. Redis and Memcached, blocking and on a loop."""
    for scheme, reply, way in itertools.product(("redis", "memcached"), (b"", b"\x15\x03\x03\x00\x02\x02\x46"), WAYS):
        with (
            talking(reply) as place,
            closing(WAYS[way](open_store(f"{scheme}://{place}", PATIENT))) as handle,
            pytest.raises(StoreError, match="for a server with TLS, write rediss:// or memcacheds://"),
        ):
            handle.hit(limit_of("5/minute"))
