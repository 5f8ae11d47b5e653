"""Servers that answer, but not to a hit: full, loading, replicas, clusters with a hole."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis.crc import key_slot
from redis_handles import PATIENT, client, hit, limit_of
from servers import HOST, cluster_running, free_port, redis_running, wait_for

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.testing.store_suite import WAYS

WHO = {"ip": "192.0.2.7"}


class State(NamedTuple):
    """A server's address, and ways to bring it into a state and out of it again."""

    address: str
    enter: Callable[[], object]
    leave: Callable[[], object]


@contextmanager
def full(folder: Path) -> Iterator[State]:
    with redis_running(folder, "--maxmemory-policy", "noeviction") as server, client(server) as admin:
        address = f"redis://{HOST}:{server.port}"
        yield State(address, lambda: admin.config_set("maxmemory", "1"), lambda: admin.config_set("maxmemory", "0"))


@contextmanager
def demoted(folder: Path) -> Iterator[State]:
    with redis_running(folder) as server, client(server) as admin:
        address = f"redis://{HOST}:{server.port}"
        yield State(address, lambda: admin.replicaof(HOST, free_port()), lambda: admin.replicaof("NO", "ONE"))


@contextmanager
def loading(folder: Path) -> Iterator[State]:
    # It replies after each key, and needs 30 s for all of them.
    slow = ("--loading-process-events-interval-bytes", "1024", "--key-load-delay", "6000", "--rdbcompression", "no")
    with redis_running(folder, *slow) as server, client(server) as admin:

        def enter() -> None:
            for i in range(5_000):
                admin.set(f"other:{i}", "x" * 1_100)
            admin.save()
            server.kill()
            server.start()

        def leave() -> None:
            admin.config_set("key-load-delay", "0")
            wait_for(lambda: not admin.info("persistence")["loading"], "the server to have loaded")

        yield State(f"redis://{HOST}:{server.port}", enter, leave)


@contextmanager
def holed(folder: Path) -> Iterator[State]:
    with cluster_running(folder) as nodes, ExitStack() as stack:
        admins = [stack.enter_context(client(node)) for node in nodes]
        owner, lost = admins[0], key_slot(b"a slot that no key of the test is in") % 5000

        def enter() -> None:
            for admin in admins:
                with suppress(redis.ResponseError):
                    admin.execute_command("CLUSTER DELSLOTS", lost)
            wait_for(lambda: states(admins) == {"fail"}, "the cluster to be down")

        def leave() -> None:
            owner.execute_command("CLUSTER ADDSLOTS", lost)
            wait_for(lambda: states(admins) == {"ok"}, "the cluster to be whole")

        yield State(f"redis+cluster://{HOST}:{nodes[0].port}", enter, leave)


def states(admins: list[redis.Redis]) -> set[str]:
    return {admin.execute_command("CLUSTER INFO")["cluster_state"] for admin in admins}


STATES: dict[str, Callable[[Path], AbstractContextManager[State]]] = {
    "OOM": full,
    "READONLY": demoted,
    "LOADING": loading,
    "CLUSTERDOWN": holed,
}


def errors(store: Store) -> list[str]:
    """The errors of one hit, of two and of a ping, blocking and on a loop; "" for a success."""
    hits, found = [hit(limit_of("5/hour")), hit(limit_of("9/hour"))], []
    for way in WAYS.values():
        handle = way(store)
        for call in (partial(handle.apply, hits[:1]), partial(handle.apply, hits), handle.ping):
            try:
                call()
                found.append("")
            except StoreError as error:
                found.append(f"{type(error).__name__}: {error}")
        handle.close()
    return found


def limiter(address: str, policy: str) -> Limiter:
    rule = Rule(name=policy, limits="3/hour", on_store_error=policy)
    return Limiter([rule], open_store(address, PATIENT), settings=Settings(rejection_cache=0))


@pytest.mark.parametrize(
    "says", [pytest.param(says, marks=[pytest.mark.thorough] * (says not in ("OOM", "READONLY"))) for says in STATES]
)
@pytest.mark.slow
def test_a_server_that_takes_no_hits_has_failed(says: str, tmp_path: Path) -> None:
    """Hits and pings fail, blocking and on a loop; each policy decides; nothing is consumed; later all hits work."""
    with STATES[says](tmp_path) as state, ExitStack() as stack:
        store = open_store(state.address, PATIENT)
        limiters = {policy: limiter(state.address, policy) for policy in ("allow", "deny", "local")}
        for each in (store, *limiters.values()):
            stack.callback(each.close)
        assert errors(store) == [""] * 6
        state.enter()
        for found in errors(store):
            assert says in found
            assert says == "OOM" or found.startswith("NotRunError")  # so the next call looks for another server
        assert [limiters["allow"].hit(WHO).allowed for _ in range(5)] == [True] * 5
        assert [limiters["deny"].hit(WHO).unavailable for _ in range(5)] == [True] * 5
        assert [limiters["local"].hit(WHO).allowed for _ in range(5)] == [True] * 3 + [False] * 2
        state.leave()
        wait_for(lambda: errors(store) == [""] * 6, "the store")
        for policy, each in limiters.items():
            wait_for(lambda each=each: in_store(each), f"limits that {policy}")


def in_store(each: Limiter) -> bool:
    """Whether the store decides, with a fresh count: failed calls have consumed nothing."""
    verdict = each.peek(WHO)
    return verdict.allowed and [decision.remaining for decision in verdict.decisions] == [2]
