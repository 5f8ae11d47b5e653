"""On a cluster: each key at its own server, requests over several slots exact, redirections and failovers followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from own_time import hurried
from redis_handles import ALGORITHMS, NOW, calls, client, hit, limit_of
from servers import HOST, STEADY, Server, cluster_running, replicated, wait_for
from store_race import raced
from vectors import CASES, ThroughStore, replay

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.receipt import Correction
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.stores.redis.client.cluster import slot_of
from ratelimit_mw.testing import StoreSmoke
from ratelimit_mw.testing.store_handles import StoreHandle
from ratelimit_mw.testing.store_suite import WAYS

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


class TestCompliance(StoreSmoke):
    """Each clause of the contract of stores. The keys of a request are in several slots."""

    keeps_no_time = ("token-bucket", "gcra", "leaky-bucket")  # a refund moves a bucket to the time of the refund

    @pytest.fixture(autouse=True)
    def _nodes(self, nodes: list[Server]) -> None:
        self.nodes = nodes

    def make_store(self) -> Store:
        return open_store(address(self.nodes), PATIENT)

    def make_second(self, store: Store) -> Store:
        return open_store(address(self.nodes[2:3]), PATIENT)


@pytest.mark.parametrize("way", WAYS)
def test_the_vectors_hold_on_a_cluster(nodes: list[Server], way: str) -> None:
    """Every case that was worked by hand, blocking and on an event loop."""
    for i, case in enumerate(CASES):
        handle = WAYS[way](open_store(address(nodes, f"?prefix={way}{i}:"), PATIENT))
        replay(case, ThroughStore(case, handle))
        handle.close()


def slot(limit: Limit, text: str = "ip=192.0.2.7") -> int:
    return slot_of(("rl:" + limit.prefix + text).encode())


def apart(limits: Callable[[], Sequence[Limit]]) -> list[Limit]:
    """Limits whose keys are in different slots."""
    found: list[Limit] = []
    while len({slot(limit) for limit in found}) < len(found) or not found:
        found = list(limits())
    return found


def test_four_processes_at_once_are_exact(nodes: list[Server]) -> None:
    """20,000 tries of four processes on one key with a limit of 1,000: exactly 1,000 pass."""
    assert raced(address(nodes), limit_of("1000/day", "sliding-window-counter")) == 1000


def test_a_rejection_by_the_last_slot_gives_all_back(handle: StoreHandle, servers: list[redis.Redis]) -> None:
    """Keys in eleven slots, charged one after another: when the last rejects, the others are as before, and look so."""
    limits = apart(lambda: [*(limit_of("10/hour", spec) for spec in ALGORITHMS), limit_of("1/hour")])
    hits = [hit(limit) for limit in limits]
    assert all(decision.allowed for decision in handle.apply(hits, NOW))
    for _ in range(3):
        decisions = handle.apply(hits, NOW)
        assert [(d.allowed, d.remaining) for d in decisions] == [(True, 9)] * len(ALGORITHMS) + [(False, 0)]
        assert [d.source for d in decisions] == limits
    looks = handle.apply([one._replace(cost=0) for one in hits], NOW)
    assert [d.remaining for d in looks] == [9] * len(ALGORITHMS) + [0]


def test_a_rejection_by_the_first_slot_consumes_nothing(handle: StoreHandle, servers: list[redis.Redis]) -> None:
    """Those after it are only looked at; a shadow that rejects stops nothing."""
    full, wide, shadow = apart(
        lambda: [limit_of("1/hour"), limit_of("10/hour", "gcra"), limit_of("1/hour", "gcra", shadow=True)]
    )
    assert [d.allowed for d in handle.apply([hit(full), hit(shadow)], NOW)] == [True, True]
    decisions = handle.apply([hit(full), hit(wide), hit(shadow)], NOW)
    assert [(d.allowed, d.remaining) for d in decisions] == [(False, 0), (True, 10), (False, 0)]
    decisions = handle.apply([hit(shadow), hit(wide)], NOW)
    assert [(d.allowed, d.remaining) for d in decisions] == [(False, 0), (True, 9)]


def test_an_error_in_a_later_slot_gives_back_too(handle: StoreHandle, servers: list[redis.Redis]) -> None:
    """A request that fails half-way has consumed nothing in the slots that had answered."""
    first, broken = apart(lambda: [limit_of("10/hour"), limit_of("10/hour")])
    owner(servers, slot(broken)).lpush("rl:" + hit(broken).key, "not a state")
    with pytest.raises(StoreError, match="does not hold a state"):
        handle.apply([hit(first), hit(broken)], NOW)
    assert handle.apply([hit(first, cost=0)], NOW)[0].remaining == 10


def test_corrections_and_forgetting_reach_every_slot(handle: StoreHandle) -> None:
    """One call of each for many keys."""
    limits = apart(lambda: [limit_of("10/hour", spec) for spec in ALGORITHMS])
    changes = [Correction(limit, hit(limit).key, 4, None) for limit in limits]
    assert handle.correct(changes, NOW) == [NOW] * len(limits)
    looks = [hit(limit, cost=0) for limit in limits]
    assert [d.remaining for d in handle.apply(looks, NOW)] == [6] * len(limits)
    handle.forget(one.key for one in looks)
    assert [d.remaining for d in handle.apply(looks, NOW)] == [10] * len(limits)


def test_a_prefix_with_braces_keeps_all_together(nodes: list[Server], servers: list[redis.Redis]) -> None:
    """A prefix in braces keeps all keys in one slot: one call for any number of limits."""
    limits = apart(lambda: [limit_of(f"5/{period}") for period in ("second", "minute", "hour")])
    store = open_store(address(nodes, "?prefix={shop}:"), PATIENT)
    store.apply([hit(limit) for limit in limits])
    for server in servers:
        server.config_resetstat()
    store.apply([hit(limit) for limit in limits])
    assert sum(calls(server).get("evalsha", 0) for server in servers[:3]) == 1
    store.close()


def test_clients_do_not_choose_their_slot(handle: StoreHandle) -> None:
    """Texts with braces spread like others."""
    limit = limit_of("1/hour")
    texts = [f"{{same}}{i}" for i in range(50)]
    assert all(handle.apply([hit(limit, text)], NOW)[0].allowed for text in texts)
    assert len({slot(limit, text.replace("{", "%7B")) for text in texts}) > 40


def owner(servers: list[redis.Redis], number: int) -> redis.Redis:
    """The primary that has a slot."""
    for first, last, (_, port, *_), *_ in raw_slots(servers[0]):
        if first <= number <= last:
            return next(server for server in servers if port_of(server) == port)
    raise LookupError(number)


def raw_slots(server: redis.Redis) -> Any:
    return server.execute_command("CLUSTER SLOTS")


def port_of(server: redis.Redis) -> int:
    return int(server.connection_pool.connection_kwargs["port"])


def name_of(server: redis.Redis) -> str:
    return str(server.execute_command("CLUSTER MYID").decode())


def test_a_slot_that_moves_is_followed(handle: StoreHandle, servers: list[redis.Redis]) -> None:
    """While it moves, new keys are asked of the new server and old ones of the old; afterwards all of the new one."""
    limit = limit_of("5/hour")
    one, number = hit(limit), slot(limit)
    assert handle.apply([one], NOW)[0].remaining == 4
    source = owner(servers, number)
    target = next(server for server in servers[:3] if port_of(server) != port_of(source))
    target.execute_command("CLUSTER SETSLOT", number, "IMPORTING", name_of(source))
    source.execute_command("CLUSTER SETSLOT", number, "MIGRATING", name_of(target))
    assert handle.apply([one], NOW)[0].remaining == 3
    keys = source.execute_command("CLUSTER GETKEYSINSLOT", number, 1_000)  # other tests may have left some
    source.migrate(HOST, port_of(target), keys, 0, 5_000)
    assert handle.apply([one], NOW)[0].remaining == 2
    for server in (target, source, *servers[:3]):
        server.execute_command("CLUSTER SETSLOT", number, "NODE", name_of(target))
    assert handle.apply([one], NOW)[0].remaining == 1
    assert handle.apply([one], NOW)[0].remaining == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_primary_with_one_slot_is_probed_and_its_keys_are_listed(reshaped: Reshaped, way: str) -> None:
    """All other slots have moved, as at the end of a reshard. A prefix in braces has one slot, on the other primary."""
    nodes, limit = reshaped
    handle = WAYS[way](open_store(address(nodes), 500_000))
    other = WAYS[way](open_store(address(nodes, "?prefix={shop}:"), 500_000))
    handle.ping()
    assert handle.apply([hit(limit)])[0].allowed
    page = handle.list_keys(limit.prefix)
    keys = list(page.keys)
    while page.next is not None:
        page = handle.list_keys(limit.prefix, page.next)
        keys += page.keys
    assert keys == [hit(limit).key]
    other.ping()
    nodes[0].pause()
    with pytest.raises(StoreError, match="time budget"):
        handle.ping()
    other.ping()
    nodes[0].resume()
    handle.close()
    other.close()


Reshaped = tuple[list[Server], Limit]


@pytest.fixture(scope="module")
def reshaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reshaped]:
    """Two primaries, of which the first has the slot of a limit only."""
    limit = next(limit for limit in iter(lambda: limit_of("5/hour"), None) if slot(limit) < 16384 // 2)
    with cluster_running(tmp_path_factory.mktemp("reshaped"), *STEADY, primaries=2) as nodes, ExitStack() as stack:
        primaries = [stack.enter_context(client(node)) for node in nodes[:2]]
        target = name_of(primaries[1])  # its epoch is the later one, so all servers believe it
        for server in reversed(primaries):
            commands = server.pipeline(transaction=False)
            for number in {*range(16384 // 2)} - {slot(limit)}:
                commands.execute_command("CLUSTER SETSLOT", number, "NODE", target)
            commands.execute()
        wait_for(lambda: {len(raw_slots(server)) for server in primaries} <= {2, 3}, "the map", patience=20)
        yield nodes, limit


def test_the_error_of_a_cluster_server_names_the_right_scheme(nodes: list[Server]) -> None:
    """``redis://`` to one server of a cluster: the error of a key on another server names the right scheme."""
    store = open_store(f"redis://{HOST}:{nodes[0].port}", PATIENT)
    elsewhere = next(limit for limit in iter(lambda: limit_of("5/hour"), None) if slot(limit) > 16384 // 3)
    with pytest.raises(StoreError, match=r"MOVED .*redis\+cluster://"):
        store.apply([hit(elsewhere)])
    store.close()


@pytest.mark.parametrize("kind", ["hostname", "unknown-endpoint"])
def test_servers_may_announce_names_or_nothing(nodes: list[Server], servers: list[redis.Redis], kind: str) -> None:
    """Names are resolved. Servers without a name have the address of the server that sent the map."""
    limits = apart(lambda: [limit_of("5/hour", spec) for spec in ALGORITHMS])
    for server in servers:
        server.config_set("cluster-announce-hostname", "localhost")
        server.config_set("cluster-preferred-endpoint-type", kind)
    wait_for(lambda: all(has_name(server) for server in servers) or kind != "hostname", "the names")
    store = open_store(address(nodes[:1]), PATIENT)
    try:
        assert [d.remaining for d in store.apply([hit(limit) for limit in limits])] == [4] * len(limits)
        other = limit_of("5/hour")
        store._blocking.target._slots.owners[slot(other)] = (HOST, moved(servers, slot(other)))  # type: ignore[attr-defined]
        assert store.apply([hit(other)])[0].remaining == 4
    finally:
        store.close()
        for server in servers:
            server.config_set("cluster-preferred-endpoint-type", "ip")


def has_name(server: redis.Redis) -> bool:
    return {node[0] for _, _, node, *_ in raw_slots(server)} == {b"localhost"}


def moved(servers: list[redis.Redis], number: int) -> int:
    """The port of a primary that does not have the slot."""
    return next(port_of(server) for server in servers[:3] if server != owner(servers, number))


def test_many_requests_at_once_share_calls_by_slot(nodes: list[Server], servers: list[redis.Redis]) -> None:
    """300 tasks on three keys: a few calls each, and each exact."""
    limits = apart(lambda: [limit_of("50/hour") for _ in range(3)])

    async def run(store: Store) -> int:
        await store.aapply([hit(limits[0], "first of all")])
        for server in servers:
            server.config_resetstat()
        found = await asyncio.gather(*(store.aapply([hit(limit)]) for limit in limits for _ in range(100)))
        await store.aclose()
        return sum(decisions[0].allowed for decisions in found)

    assert asyncio.run(run(open_store(address(nodes), PATIENT))) == 150
    assert sum(calls(server).get("evalsha", 0) for server in servers[:3]) <= 24


def test_a_killed_primary_is_followed_by_its_replica(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its keys fail in time until the replica takes over, which knows them; keys elsewhere are answered throughout."""
    with cluster_running(tmp_path_factory.mktemp("cluster")) as nodes, ExitStack() as stack:
        blocking, awaiting = (open_store(address(nodes), PATIENT) for _ in range(2))
        runner = stack.enter_context(asyncio.Runner())
        ways: list[Callable[[Hit], list[Decision]]] = [
            lambda one: blocking.apply([one]),
            lambda one: runner.run(awaiting.aapply([one])),
        ]
        first = stack.enter_context(client(nodes[0]))
        (low, high), *_ = sorted(
            (low, high) for low, high, (_, port, *_), *_ in raw_slots(first) if port == nodes[0].port
        )
        limits = [limit_of("9/hour") for _ in range(40)]
        here = next(limit for limit in limits if low <= slot(limit) <= high)
        there = next(limit for limit in limits if not low <= slot(limit) <= high)
        for send in ways:
            send(hit(here))
            send(hit(there))
        replica = stack.enter_context(client(nodes[3]))
        wait_for(lambda: replicated(first, replica), "the replica")
        nodes[0].kill()
        for store, send in zip((blocking, awaiting), ways, strict=True):
            with hurried(store, 0.2), pytest.raises(StoreError):
                send(hit(here))
            assert send(hit(there))[0].allowed
        for send in ways:
            wait_for(lambda send=send: answers(send, hit(here)), "the replica to take over")
        assert ways[0](hit(here, cost=0))[0].remaining == 9 - 2 - 2
        runner.run(awaiting.aclose())
        blocking.close()


def answers(send: Callable[[Hit], list[Decision]], one: Hit) -> bool:
    try:
        return bool(send(one))
    except StoreError:
        return False


@pytest.mark.parametrize("is_async", [False, True])
def test_processes_learn_their_number_from_a_cluster(nodes: list[Server], is_async: bool) -> None:
    """The announcement is in a slot of its own. A request that is rejected announces nothing."""
    name = f"fleet-{is_async}"
    limiters = [
        Limiter([Rule(name=name, limits="8/hour")], open_store(address(nodes), PATIENT), settings=Settings())
        for _ in range(3)
    ]
    with asyncio.Runner() as loop:

        def hit(limiter: Limiter) -> bool:
            return bool(loop.run(limiter.ahit({"ip": name})) if is_async else limiter.hit({"ip": name}))

        assert [hit(limiter) for limiter in limiters * 2] == [True] * 6
        assert [limiter.breaker.fleet._learned for limiter in limiters] == [3] * 3  # type: ignore[union-attr]
        for limiter in limiters:
            limiter.breaker.fleet.due_at = 0.0  # type: ignore[union-attr]
        assert [hit(limiter) for limiter in limiters] == [True, True, False]
        for limiter in limiters:
            loop.run(limiter.aclose()) if is_async else limiter.close()
