"""Servers that announce names which the application cannot reach, behind proxies on other ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from redis_handles import client, hit, limit_of, ways
from redis_proxy import Proxy, proxied
from servers import HOST, STEADY, Server, cluster_running, redis_running, sentinel_running, wait_for

from ratelimit_mw.stores.redis.slot_map import slot_of

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A cluster whose servers announce ``redis-0.invalid``, ``redis-1.invalid``, ..."""
    names = ("--cluster-preferred-endpoint-type", "hostname")
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY, *names) as found, ExitStack() as stack:
        clients = [stack.enter_context(client(node)) for node in found]
        for number, each in enumerate(clients):
            each.config_set("cluster-announce-hostname", f"redis-{number}.invalid")
        names_known = {f"redis-{number}.invalid".encode() for number in range(len(found))}
        wait_for(lambda: all(announced(each) == names_known for each in clients), "the names")
        yield found


def announced(server: redis.Redis) -> set[bytes]:
    return {node[0] for _, _, *nodes in server.execute_command("CLUSTER SLOTS") for node in nodes}


@pytest.fixture
def proxies(nodes: Sequence[Server]) -> Iterator[list[Proxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(proxied(node.port)) for node in nodes]


def remap(nodes: Sequence[Server], proxies: Sequence[Proxy]) -> str:
    pairs = zip(nodes, proxies, strict=True)
    return ",".join(
        f"redis-{number}.invalid:{node.port}->{HOST}:{proxy.port}" for number, (node, proxy) in enumerate(pairs)
    )


def scripts(proxies: Sequence[Proxy]) -> list[int]:
    """Return how many scripts went through each proxy."""
    return [sum(command[0] in (b"EVALSHA", b"EVAL") for command in proxy.heard) for proxy in proxies]


def test_a_slot_that_moves_and_a_failover_are_followed(nodes: list[Server], proxies: list[Proxy]) -> None:
    """The redirects name announced servers, and so does the map after the failover."""
    url = f"redis+cluster://{HOST}:{proxies[1].port}?remap={remap(nodes, proxies)}"
    with ways(url) as sends, ExitStack() as stack:
        clients = [stack.enter_context(client(node)) for node in nodes]
        names = [each.execute_command("CLUSTER MYID").decode() for each in clients]
        limit = next(one for one in iter(lambda: limit_of("9/hour"), None) if in_first(hit(one).key))
        number = slot_of(b"rl:" + hit(limit).key.encode())
        assert [send(hit(limit))[0].remaining for send in sends] == [8, 7]
        clients[1].execute_command("CLUSTER SETSLOT", number, "IMPORTING", names[0])
        clients[0].execute_command("CLUSTER SETSLOT", number, "MIGRATING", names[1])
        clients[0].migrate(
            HOST, nodes[1].port, clients[0].execute_command("CLUSTER GETKEYSINSLOT", number, 9), 0, 5_000
        )
        assert [send(hit(limit))[0].remaining for send in sends] == [6, 5]
        for each in (clients[1], clients[0], clients[2]):
            each.execute_command("CLUSTER SETSLOT", number, "NODE", names[1])
        assert [send(hit(limit))[0].remaining for send in sends] == [4, 3]
        clients[4].execute_command("CLUSTER FAILOVER")
        wait_for(lambda: clients[4].info("replication")["role"] == "master", "the failover")
        wait_for(lambda: clients[1].info("replication")["role"] == "slave", "the old primary to follow")
        assert [send(hit(limit))[0].remaining for send in sends] == [2, 1]
        assert scripts(proxies)[4] >= 2


def in_first(key: str) -> bool:
    return slot_of(b"rl:" + key.encode()) <= 16384 // 3


def test_the_primary_of_sentinel_is_remapped(tmp_path: Path) -> None:
    """Blocking and on a loop, the calls go to the proxy."""
    with ExitStack() as stack:
        primary = stack.enter_context(redis_running(tmp_path))
        sentinel = stack.enter_context(sentinel_running(tmp_path, "mymaster", primary))
        proxy = stack.enter_context(proxied(primary.port))
        pairs, limit = f"{HOST}:{primary.port}->{HOST}:{proxy.port}", limit_of("9/hour")
        sends = stack.enter_context(ways(f"redis+sentinel://{HOST}:{sentinel.port}/mymaster?remap={pairs}"))
        assert [send(hit(limit))[0].remaining for send in sends] == [8, 7]
        assert proxy.count(hit(limit).key) >= 2
