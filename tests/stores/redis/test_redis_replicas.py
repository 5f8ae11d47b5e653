"""Replicas of a cluster run no script and no listing, even right after they were primaries."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
import redis
from redis_handles import NOW, PATIENT, calls, client, hit, limit_of
from redis_topology import Topology
from servers import HOST, STEADY, Server, cluster_running

from ratelimit_mw.decision import Correction
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing.store_suite import WAYS, StoreHandle

pytestmark = pytest.mark.thorough

LIMITS = [limit_of("90000/hour") for _ in range(30)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with cluster_running(tmp_path_factory.mktemp("cluster"), *STEADY) as found:
        yield found


@pytest.fixture
def topology(nodes: Sequence[Server]) -> Iterator[Topology]:
    with ExitStack() as stack:
        yield Topology(nodes, [stack.enter_context(client(node)) for node in nodes])


def opened(nodes: Sequence[Server]) -> Store:
    return open_store(f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in nodes)}", PATIENT)


def use(handle: StoreHandle) -> None:
    """Call all that a store can do, on keys of all primaries."""
    hits = [hit(limit) for limit in LIMITS]
    handle.apply(hits[:3], NOW)
    for one in hits:
        handle.apply([one], NOW)
        handle.apply([one._replace(cost=0)], NOW)
    handle.correct([Correction(limit, hit(limit).key, 4, None) for limit in LIMITS], NOW)
    handle.forget([one.key for one in hits])


def runs(server: redis.Redis) -> dict[str, int]:
    """How often a server ran a command of this package. Replicas run the writes of their primary, and no script."""
    return {name: count for name, count in calls(server).items() if name in ("eval", "evalsha", "scan") and count}


@pytest.mark.parametrize("way", WAYS)
def test_replicas_run_nothing_before_and_after_a_failover(
    nodes: Sequence[Server], topology: Topology, way: str
) -> None:
    """The store learns of the failover from the replies of the old primary, which runs nothing."""
    store = opened(nodes)
    handle = WAYS[way](store)
    use(handle)
    store.ping()
    primary, replica = (0, 3) if topology.is_primary(0) else (3, 0)
    topology.fail_over(primary, replica)
    for each in topology.clients:
        each.config_resetstat()
    use(handle)
    store.ping()
    store.list_keys("")
    roles = [topology.is_primary(number) for number in range(6)]
    assert [bool(runs(each)) for each in topology.clients] == roles
    handle.close()
