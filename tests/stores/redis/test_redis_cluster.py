"""On a cluster: each key at its own server, requests over several slots exact, redirections and failovers followed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from own_time import hurried
from redis.crc import key_slot
from redis_handles import client, hit, limit_of
from redis_topology import port_at
from servers import HOST, Server, cluster_running, replicated, wait_for

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Correction, Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.testing.store_suite import WAYS, StoreHandle

pytestmark = pytest.mark.slow

PATIENT = 5_000_000


@pytest.fixture
def servers(nodes: list[Server]) -> Iterator[list[redis.Redis]]:
    with ExitStack() as stack:
        yield [stack.enter_context(client(node)) for node in nodes]


def address(nodes: Sequence[Server], query: str = "") -> str:
    return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in nodes)}{query}"


@pytest.fixture(params=WAYS)
def handle(nodes: list[Server], request: pytest.FixtureRequest) -> Iterator[StoreHandle]:
    """A store whose URL names the first server only."""
    found = WAYS[request.param](open_store(address(nodes[:1]), PATIENT))
    yield found
    found.close()


def slot(limit: Limit, text: str = "ip=192.0.2.7") -> int:
    return key_slot(("rl:" + limit.prefix + text).encode())


def test_clients_do_not_choose_their_slot(nodes: list[Server], servers: list[redis.Redis]) -> None:
    """Keys of texts with braces are on all servers."""
    with closing(Limiter([Rule(name="braces", limits="1/hour")], open_store(address(nodes), PATIENT))) as limiter:
        assert all(limiter.hit({"ip": f"{{same}}{i}"}) for i in range(50))
    assert all(server.keys("*|braces|*") for server in servers[:3])


def owner(servers: list[redis.Redis], number: int) -> redis.Redis:
    port = port_at(servers[0], number)
    return next(server for server in servers if port_of(server) == port)


def port_of(server: redis.Redis) -> int:
    return int(server.connection_pool.connection_kwargs["port"])


def name_of(server: redis.Redis) -> str:
    return str(server.execute_command("CLUSTER MYID").decode())


class Move:
    """Moves a slot from the server that has it to another one, in steps."""

    def __init__(self, servers: list[redis.Redis], number: int) -> None:
        self.number, self.servers, self.source = number, servers[:3], owner(servers, number)
        self.target = next(server for server in self.servers if server is not self.source)
        self.target.execute_command("CLUSTER SETSLOT", number, "IMPORTING", name_of(self.source))
        self.source.execute_command("CLUSTER SETSLOT", number, "MIGRATING", name_of(self.target))

    def move(self, *keys: str) -> None:
        """Move some keys, or all."""
        found = keys or self.source.execute_command("CLUSTER GETKEYSINSLOT", self.number, 1_000)
        self.source.migrate(HOST, port_of(self.target), found, 0, 5_000)

    def end(self) -> None:
        for server in (self.target, self.source, *self.servers):
            server.execute_command("CLUSTER SETSLOT", self.number, "NODE", name_of(self.target))


def test_a_slot_that_moves_is_followed(handle: StoreHandle, servers: list[redis.Redis]) -> None:
    """While it moves, new keys are asked of the new server and old ones of the old; afterwards all of the new one."""
    limit = limit_of("5/hour")
    assert handle.hit(limit).remaining == 4
    move = Move(servers, slot(limit))
    assert handle.hit(limit).remaining == 3
    move.move()
    assert handle.hit(limit).remaining == 2
    move.end()
    assert [handle.hit(limit).remaining for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("way", WAYS)
def test_keys_of_one_request_on_both_sides_of_a_move(nodes: list[Server], servers: list[redis.Redis], way: str) -> None:
    """Several limits in one slot, one of whose keys has moved: each key is asked at its server, all or nothing."""
    prefix = f"{{both {way}}}:"
    handle = WAYS[way](open_store(address(nodes, f"?prefix={prefix}"), PATIENT))
    first, second = hits = [hit(limit_of("5/hour")), hit(limit_of("6/hour"))]
    handle.apply(hits)
    move = Move(servers, key_slot(prefix.encode()))
    move.move(prefix + first.key)
    assert [decision.remaining for decision in handle.apply(hits)] == [3, 4]
    found = [(d.allowed, d.remaining) for d in handle.apply([first, second._replace(cost=9)])]
    assert found == [(True, 3), (False, 4)]
    handle.correct([Correction(one.limit, one.key, 1, None) for one in hits])
    assert [handle.apply([one._replace(cost=0)])[0].remaining for one in hits] == [2, 3]
    move.move(prefix + second.key)
    move.end()
    assert [decision.remaining for decision in handle.apply(hits)] == [1, 2]
    handle.close()


def test_the_error_of_a_cluster_server_names_the_right_scheme(nodes: list[Server], servers: list[redis.Redis]) -> None:
    """``redis://`` to one server of a cluster: the error of a key on another server names the right scheme."""
    store = open_store(f"redis://{HOST}:{nodes[0].port}", PATIENT)
    limits = iter(lambda: limit_of("5/hour"), None)
    elsewhere = next(limit for limit in limits if port_at(servers[0], slot(limit)) != nodes[0].port)
    with pytest.raises(StoreError, match=r"MOVED .*redis\+cluster://"):
        store.apply([hit(elsewhere)])
    store.close()


def test_a_killed_primary_is_followed_by_its_replica(tmp_path: Path) -> None:
    """Its keys fail in time until the replica takes over, which knows them; keys elsewhere are answered throughout."""
    with cluster_running(tmp_path) as nodes, ExitStack() as stack:
        first, replica = (stack.enter_context(client(nodes[number])) for number in (0, 3))
        stores = [open_store(address(nodes), PATIENT) for _ in WAYS]
        handles = [stack.enter_context(closing(way(store))) for way, store in zip(WAYS.values(), stores, strict=True)]
        limits = iter(lambda: limit_of("9/hour"), None)
        here = next(limit for limit in limits if port_at(first, slot(limit)) == nodes[0].port)
        there = next(limit for limit in limits if port_at(first, slot(limit)) != nodes[0].port)
        for handle in handles:
            handle.hit(here)
            handle.hit(there)
        wait_for(lambda: replicated(first, replica), "the replica")
        nodes[0].kill()
        for store, handle in zip(stores, handles, strict=True):
            with hurried(store, 0.2), pytest.raises(StoreError):
                handle.hit(here)
            assert handle.hit(there).allowed
        for handle in handles:
            wait_for(lambda handle=handle: answers(handle, here), "the replica to take over")
        assert handles[0].peek(here).remaining == 9 - 2 - 2


def answers(handle: StoreHandle, limit: Limit) -> bool:
    try:
        return bool(handle.hit(limit))
    except StoreError:
        return False
