"""Where the calls to a cluster go: redirects, servers that fail, and the map. The servers are functions."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hiredis import Reader
from redis import ResponseError
from redis.crc import key_slot
from redis_handles import hit, limit_of

from ratelimit_mw.errors import StoreError
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores.drivers import LoopDriver
from ratelimit_mw.stores.redis import router as router_module
from ratelimit_mw.stores.redis.address import Address
from ratelimit_mw.stores.redis.call import HIT, Operation, key_name
from ratelimit_mw.stores.redis.errors import NotRunError, as_store_error
from ratelimit_mw.stores.redis.router import Router
from ratelimit_mw.stores.redis.slot_map import SlotMap

BUDGET = 0.05
A, B, C, R = (("a", 1), ("b", 2), ("c", 3), ("r", 4))
Location = tuple[str, int]


class Servers:
    """Servers that reply with a value, an error, or the result of a function.

    ``DOWN`` rejects connections, and ``SILENT`` accepts none.
    """

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.map = [(0, 16383, A, R), (0, -1, B), (0, -1, C)]
        self.maps: dict[str, Any] = {}
        self.sent: list[str] = []
        self.clock: Any = SimpleNamespace(now=0.0)
        self.accepts = asyncio.Event()
        self.accepts.set()

    def way(self) -> Any:
        return SimpleNamespace(clock=self.clock, channel=Pool, servers=self)

    async def connect(self, location: Location, deadline: float) -> Callable[[Any], Any]:
        host = location[0]
        await self.accepts.wait()
        if self.replies.get(host) is DOWN:
            self.sent.append(f"{host}:rejected")
            raise ConnectionRefusedError("refused")
        if self.replies.get(host) is SILENT:
            self.clock.now = deadline
            raise TimeoutError
        return partial(self._reply, host)

    def _reply(self, host: str, command: list[bytes]) -> Any:
        self.sent.append(f"{host}:{command[0].decode()}")
        if command[0] == b"CLUSTER":
            named = [[first, last, *[(name.encode(), port) for name, port in at]] for first, last, *at in self.map]
            return self.maps.get(host, named)
        if command[0] == b"ASKING":
            return b"OK"
        reply = self.replies.get(host, b"counted")
        return reply() if callable(reply) else reply


DOWN, SILENT = object(), object()


class Pool:
    connection = None

    def __init__(self, connect: Callable[[float], Awaitable[Callable[[Any], Any]]]) -> None:
        self._connect = connect

    async def send(self, frame: bytes, replies: int, deadline: float) -> Awaitable[list[Any]]:
        server = await self._connect(deadline * 0.9)
        reader = Reader()
        reader.feed(frame)

        async def receive() -> list[Any]:
            found = [server(reader.gets()) for _ in range(replies)]
            if errors := [reply for reply in found if isinstance(reply, OSError)]:
                raise errors[0]
            return found

        return receive()

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "_MAP_INTERVAL", 0)
    monkeypatch.setattr(router_module, "log_in", lambda way, _, *rest: way.servers.connect(*rest))


def opened(servers: Servers, *hosts: Location) -> Router:
    return Router(Address(hosts or (A,), cluster=True), servers.way())


class Heard(Operation):
    """An operation whose result is its reply."""

    def take(self, reply: Any, position: int) -> int:
        self.result = reply
        return position


def heard() -> Heard:
    one = hit(limit_of("9/hour"))
    return Heard(HIT, [one], [key_name("rl:", one.key)], 7)


def ask(cluster: Router, servers: Servers) -> Any:
    """Return the reply to a message or its error."""
    message = heard()
    servers.sent.clear()
    try:
        run_blocking(cluster.ask_each([message], servers.clock.now + BUDGET))
    except StoreError as error:
        return error
    return message.result


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def cluster(servers: Servers) -> Router:
    """A cluster that has had a first request."""
    found = opened(servers)
    ask(found, servers)
    return found


def moved(to: Location, code: str = "MOVED") -> ResponseError:
    return ResponseError(f"{code} 7 {to[0]}:{to[1]}")


def test_redirects_are_followed_once_each() -> None:
    """ASK sends ASKING first. MOVED corrects the map for the slot, so the next call goes there at once."""
    servers = Servers(a=moved(B, "ASK"), b=moved(C))
    cluster = opened(servers)
    assert ask(cluster, servers) == b"counted"
    assert servers.sent == ["a:CLUSTER", "a:EVALSHA", "b:ASKING", "b:EVALSHA", "c:EVALSHA"]
    assert cluster.map.owners.count(C) == 1


@pytest.mark.parametrize("host", [None, b"", b"?", b"a"])
def test_a_server_without_a_host_has_the_host_that_was_asked(host: bytes | None) -> None:
    """It does not know its address, or it has no host name. The port is its own, and a remap applies to both."""
    servers = Servers(a=ResponseError(f"MOVED 7 {(host or b'').decode()}:9"))
    servers.maps["a"] = [[0, 16383, [host, 8]]]
    address = Address((A,), cluster=True, remap=lambda announced: B if announced == ("a", 9) else announced)
    cluster = Router(address, servers.way())
    assert ask(cluster, servers) == b"counted"
    assert servers.sent == ["a:CLUSTER", "a:EVALSHA", "b:EVALSHA"]
    assert set(cluster.map.owners) == {("a", 8), B}


def test_a_remap_that_does_not_know_a_server_fails_its_calls_alone() -> None:
    """They have run nowhere. What a call to another server has counted can be refunded."""
    servers = Servers(a=moved(("new", 9)))
    servers.map = [(0, 8_000, A), (8_001, 16_383, B)]
    known = {A: A, B: B}
    cluster = Router(Address((A,), cluster=True, remap=known.__getitem__), servers.way())
    one, other = heard(), heard()
    other.slot = 9_000
    run_blocking(cluster.ask_each([one, other], BUDGET))
    assert (type(one.result), str(one.result)) == (NotRunError, "Redis: remap: KeyError: ('new', 9)")
    assert other.result == b"counted"


def test_servers_that_redirect_to_each_other_end_in_an_error() -> None:
    """No reply counted anything, and the number of hops is bounded."""
    servers = Servers(a=moved(B), b=moved(A))
    assert "redirect to each other after 6 redirects. Check remap" in str(ask(opened(servers), servers))
    assert len(servers.sent) == 1 + 6


@pytest.mark.parametrize("code", ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"])
def test_a_server_that_may_have_lost_its_slots_is_not_asked_for_the_map_first(code: str) -> None:
    """The call is not sent again. The next call follows the map of another server."""
    servers = Servers(a=ResponseError(f"{code} for a reason"))
    cluster = opened(servers)
    error = ask(cluster, servers)
    assert code in str(error)
    assert isinstance(as_store_error(error), NotRunError)
    assert servers.sent == ["a:CLUSTER", "a:EVALSHA"]
    servers.map = [(0, 16383, C, R)]
    assert ask(cluster, servers) == b"counted"
    assert servers.sent == ["b:CLUSTER", "c:EVALSHA"]


def test_a_connection_that_breaks_after_the_call_was_sent_is_an_error() -> None:
    """The server may have counted, so the call is not sent again."""
    servers = Servers(a=ConnectionResetError("cut"))
    error = ask(opened(servers), servers)
    assert type(error) is StoreError
    assert "ConnectionResetError: cut" in str(error)
    assert not isinstance(as_store_error(error), NotRunError)
    assert servers.sent == ["a:CLUSTER", "a:EVALSHA"]


def test_a_connect_ends_before_its_call(servers: Servers, cluster: Router) -> None:
    """So nothing was sent, and the replies of other servers are read. There is no time for another server."""
    servers.replies = {"a": SILENT}
    assert type(ask(cluster, servers)) is NotRunError
    assert 0 < servers.clock.now < BUDGET
    assert servers.sent == []


def test_a_call_follows_the_map_that_was_read_while_it_connected(
    servers: Servers, cluster: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel of a server that has left is closed then, and nothing was sent."""
    connect = servers.connect

    async def closed(location: Location, deadline: float) -> Any:
        if location == A:
            cluster.map.load([[0, 16383, [b"c", 3]]], B)
            raise TimeoutError
        return await connect(location, deadline)

    monkeypatch.setattr(servers, "connect", closed)
    assert ask(cluster, servers) == b"counted"
    assert servers.sent == ["c:EVALSHA"]


@pytest.mark.parametrize(("successor", "sent"), [(C, ["c:EVALSHA"]), (A, [])])
def test_another_server_names_the_successor_of_one_that_cannot_be_reached(
    servers: Servers, cluster: Router, successor: Location, sent: list[str]
) -> None:
    """Nothing was sent, so the call follows the map of another server. If that names the dead one: an error."""
    servers.replies = {"a": DOWN}
    servers.map = [(0, 16383, successor, R)]
    reply = ask(cluster, servers)
    assert reply == b"counted" if successor == C else isinstance(reply, NotRunError)
    assert servers.sent == ["a:rejected", "b:CLUSTER", *sent]


def test_a_server_that_has_left_the_cluster_gives_no_map() -> None:
    """It has no slots. The next server of the URL has the map."""
    servers = Servers()
    servers.maps["b"] = []
    assert ask(opened(servers, B, A), servers) == b"counted"
    assert servers.sent == ["b:CLUSTER", "a:CLUSTER", "a:EVALSHA"]
    servers.maps["a"] = []
    assert str(ask(opened(servers), servers)) == "Redis: the server has left the cluster"


def test_a_replica_gives_the_map_if_no_primary_does(servers: Servers, cluster: Router) -> None:
    """All primaries of the map and the server of the URL are gone."""
    servers.replies = {"a": DOWN, "b": DOWN, "c": DOWN}
    assert isinstance(ask(cluster, servers), NotRunError)
    servers.map = [(0, 16383, R)]
    assert ask(cluster, servers) == b"counted"
    assert servers.sent[-2:] == ["r:CLUSTER", "r:EVALSHA"]


def test_a_server_is_a_replica_by_the_map_only() -> None:
    """Without the right to read the map, the servers of the URL are not called replicas."""
    servers = Servers()
    servers.maps["a"] = ResponseError("NOPERM no rights")
    cluster = opened(servers)
    assert "NOPERM" in str(ask(cluster, servers))
    assert [facts.kind for facts in cluster.facts()] == ["redis"]
    del servers.maps["a"]
    assert ask(cluster, servers) == b"counted"
    assert [facts.kind for facts in cluster.facts()] == ["redis", "redis", "redis", "replica"]


@pytest.mark.parametrize("has_map", [False, True])
def test_the_map_is_read_once_in_an_interval_while_servers_fail(monkeypatch: pytest.MonkeyPatch, has_map: bool) -> None:
    """Ten requests, one read, and each request has the reason."""
    monkeypatch.setattr(router_module, "_MAP_INTERVAL", 3_600)
    servers = Servers(a=ResponseError("CLUSTERDOWN for a reason") if has_map else DOWN)
    cluster = opened(servers)
    tries = []
    for _ in range(10):
        assert ("for a reason" if has_map else "refused") in str(ask(cluster, servers)).lower()
        tries += servers.sent
    assert len([each for each in tries if each in ("a:CLUSTER", "a:rejected")]) == 1
    assert tries.count("a:EVALSHA") == 10 * has_map


def test_of_the_calls_of_a_loop_one_reads_the_map() -> None:
    """The others wait, and read it if that one is cancelled. A call whose deadline passes meanwhile was not sent."""
    servers, calls = Servers(), [heard() for _ in range(3)]

    async def run() -> None:
        way: Any = LoopDriver(BUDGET)
        way.channel, way.servers = Pool, servers
        cluster = Router(Address((A,), cluster=True), way)
        servers.accepts.clear()
        deadlines = zip(calls, (9, 9, BUDGET / 10), strict=True)
        reader, other, late = (asyncio.ensure_future(cluster.ask_each([call], due)) for call, due in deadlines)
        await late
        reader.cancel()
        servers.accepts.set()
        await other

    asyncio.run(run())
    assert calls[1].result == b"counted"
    assert type(calls[2].result) is NotRunError
    assert servers.sent == ["a:CLUSTER", "a:EVALSHA"]


def test_each_slot_has_a_key_to_probe_its_server() -> None:
    """A server may be left with one slot at the end of a reshard. In braces, all keys have the slot of the prefix."""
    slots = SlotMap(Address((A,), cluster=True))
    slots.load([[0, 16383, [b"a", 1]]], A)
    for number in (0, 1, 4_711, 16_383):
        slots.owners[number] = B
        assert key_slot((slots.key_at(B, lambda key: key_slot(key.encode())) or "").encode()) == number
        slots.owners[number] = A
    assert slots.key_at(B, lambda key: key_slot(key.encode())) is None
    assert slots.key_at(A, lambda key: 7) == "ping" + 14 * "0"
