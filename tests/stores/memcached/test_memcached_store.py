"""The values of the Memcached store in a server, and the effect of other values."""

import itertools
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from memcached_handles import (
    CLIENT,
    LEGAL,
    NOW,
    PATIENT,
    address,
    ask,
    counted,
    hit,
    names_in,
    opened,
    rule_of,
    time_of,
    undo,
    value_of,
)
from servers import Server, memcached_command, memcached_running, wait_for

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.memcached.store import MemcachedStore
from ratelimit_mw.testing.store_compliance import HOSTILE
from ratelimit_mw.testing.store_suite import ALGORITHMS, WAYS, limit_of

# -- names -----------------------------------------------------------------------------------------------------


def test_every_value_has_a_legal_name_and_an_expiry(memcached_server: Server) -> None:
    """For hostile keys and every algorithm: no value stays forever."""
    limits = [limit_of("500/minute", spec) for spec in ALGORITHMS]
    with opened(memcached_server, query="?prefix=legal:") as store:
        for limit in limits:
            for text in HOSTILE:
                store.apply([hit(limit, client=text)], NOW)
            for i in range(200):
                store.apply([hit(limit)], NOW + i)
            store.forget([limit.prefix + CLIENT])
    found = names_in(memcached_server, "legal:")
    assert len(found) == len(limits) * len(HOSTILE)
    assert all(LEGAL.fullmatch(name) and name.startswith(b"legal:") for name in found)
    assert min(found.values()) > time.time()


@pytest.mark.parametrize(("quota", "seconds"), [("5/minute", 60), ("1/29d", 29 * 86_400), ("1/366d", 366 * 86_400)])
def test_a_state_expires_some_seconds_after_its_reset(
    memcached_server: Server, store: MemcachedStore, quota: str, seconds: int
) -> None:
    """On both sides of the thirty days beyond which an expiry is a date. The server counts spans on its own clock."""
    limit, before = limit_of(quota, "gcra"), min(time.time(), time_of(memcached_server))
    store.apply([hit(limit, cost=limit.limit)])
    (ends,) = names_in(memcached_server, rule_of(limit)).values()
    assert before + seconds - 1 <= ends <= time.time() + seconds + 4


def test_a_debt_beyond_2038_stays(memcached_server: Server, store: MemcachedStore) -> None:
    """No expiry can be as late, and Memcached would delete the value at once."""
    name, ann = f"tokens-{time.time_ns()}", {"ip": "192.0.2.7"}
    limiter = Limiter([Rule(name=name, limits="1000/minute", algorithm="gcra")], store)
    limiter.settle(limiter.hit(ann), 10**12)
    assert not limiter.peek(ann)
    assert list(names_in(memcached_server, name).values()) == [-1]


# -- small states ----------------------------------------------------------------------------------------------


def test_a_small_state_is_one_value(memcached_server: Server, store: MemcachedStore) -> None:
    """The value has the format of the algorithm."""
    limit = limit_of("5/minute", "gcra")
    store.apply([hit(limit, cost=3)], NOW)
    (name,) = names_in(memcached_server, rule_of(limit))
    assert value_of(memcached_server, name) == limit.algorithm.dump((NOW, 3, 0, NOW))


def test_a_complete_refund_leaves_no_value(memcached_server: Server, store: MemcachedStore) -> None:
    """A fresh key takes no memory."""
    limits = [limit_of("5/minute", spec) for spec in ("fixed-window", "gcra", "sliding-window-log")]
    for limit in limits:
        (decision,) = store.apply([hit(limit)], NOW)
        store.correct([undo(hit(limit), decision)], NOW)
        assert value_of(memcached_server, next(iter(names_in(memcached_server, rule_of(limit))), b"-")) == b""


def test_a_request_takes_two_round_trips_and_a_rejected_one_takes_one(store: MemcachedStore) -> None:
    """All limits are read together and written together."""
    limits = [limit_of("2/minute", spec) for spec in ("fixed-window", "gcra", "sliding-window-log", "token-bucket")]
    trips = counted(store)
    for expected in (2, 2, 1):
        trips.clear()
        store.apply([hit(limit) for limit in limits], NOW)
        assert len(trips) == expected


def test_a_value_that_is_no_state_is_a_store_error(memcached_server: Server) -> None:
    """A value of another application is neither a fresh key nor an exception of another type."""
    specs, values = ("gcra", "sliding-window-log", "tiered-window"), (b"nonsense", b"1:2", b"\x80\x81")
    for (spec, value), way in zip(itertools.product(specs, values), itertools.cycle(WAYS)):
        limit, handle = limit_of("5/hour", spec), WAYS[way](open_store(address(memcached_server), PATIENT))
        handle.apply([hit(limit)], NOW)
        for name in names_in(memcached_server, rule_of(limit)):
            ask(memcached_server, b"set %b 0 60 %d\r\n%b" % (name, len(value), value), b"STORED")
        with pytest.raises(StoreError, match="Memcached"):
            handle.apply([hit(limit)], NOW)
        handle.close()


# -- sockets -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    """The store counts over it, and its name shows it."""
    path = tmp_path / "memcached@1.sock"
    with subprocess.Popen([*memcached_command(0)[:-10], "-s", str(path)]) as process:
        try:
            wait_for(path.exists, "the socket")
            for way in WAYS.values():
                with closing(way(open_store(f"memcached+unix://{path}?prefix=shop:", PATIENT))) as handle:
                    limit = limit_of("5/minute")
                    assert [handle.hit(limit).remaining for _ in range(3)] == [4, 3, 2]
                    assert [facts.name for facts in handle.store.facts()] == [str(path)]
        finally:
            process.kill()
    assert repr(MemcachedStore(f"memcached+unix://{path}")) == f"<MemcachedStore memcached+unix://{path}>"


# -- servers ---------------------------------------------------------------------------------------------------


def test_keys_do_not_move_when_a_server_is_killed(tmp_path: Path, memcached_server: Server) -> None:
    """Keys of the killed server are errors. They do not move to the other server, which would give a fresh quota."""
    limit = limit_of("1000/hour")
    with memcached_running(tmp_path) as server, opened(server, memcached_server) as store:
        clients = [f"c{i}" for i in range(40)]
        for client in clients:
            store.apply([hit(limit, client=client)], NOW)
        server.kill()
        found = [count_or_none(store, limit, client) for client in clients]
        assert set(found) == {999, None}
        assert 5 < found.count(None) < 35
        with pytest.raises(StoreError):
            store.ping()
        with opened(memcached_server) as alone:
            alone.ping()


def count_or_none(store: MemcachedStore, limit: Any, client: str) -> int | None:
    try:
        return store.apply([hit(limit, 0, client)], NOW)[0].remaining
    except StoreError:
        return None
