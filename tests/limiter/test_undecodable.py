"""A state that cannot be decoded is no outage: its key starts anew, and the circuit breaker does not count it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from lmdb_kit import note_files
from memcached_handles import ask, names_in
from redis_handles import PATIENT, address, client
from servers import HOST, Server, memcached_running
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Rule, StateError, algorithms
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import open_store
from ratelimit_mw.stores.lmdb.records import PREFIX
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
NAMES = ["fixed-window", "gcra", "sliding-window-counter", "sliding-window-log", "tiered-window", "concurrent", "own"]


class OwnWindow(FixedWindow):
    """An algorithm of an application: Redis has no Lua for it."""

    name = "own-window"


Damage = Callable[[Limiter, str], None]
"""Writes a value that is not a state under a key."""


@pytest.fixture(params=["redis text", "redis list", "redis set", "memcached", "lmdb record", "lmdb log"])
def damaged(
    request: pytest.FixtureRequest,
    redis_server: Server,
    memcached: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, Damage]:
    files = note_files(monkeypatch)
    store, _, kind = request.param.partition(" ")

    def in_redis(_: Limiter, key: str) -> None:
        with client(redis_server) as connection:
            name = f"{tmp_path.name}:{key}"
            assert connection.delete(name) == 1
            if kind == "text":
                connection.set(name, "nonsense")
            elif kind == "list":
                connection.lpush(name, "nonsense")
            else:
                connection.zadd(name, {"nonsense": 7})

    def in_memcached(_: Limiter, key: str) -> None:
        prefix = key.rpartition("|")[0]
        names = names_in(memcached, prefix)
        assert names
        for name in names:
            if not name.startswith(b"rl:g"):
                ask(memcached, b"set " + name + b" 0 0 1\r\n?", b"STORED")

    def in_lmdb(_: Limiter, key: str) -> None:
        with files[-1].begin(write=True) as txn:
            name = PREFIX + b"state:" + key.encode()
            assert txn.get(name)
            txn.put(name, bytes(8) + (b"c7:?" if kind == "record" else b"l" + b"?" * 64))

    urls = {
        "redis": (f"{address(redis_server)}?prefix={tmp_path.name}:", in_redis),
        "memcached": (f"memcached://{HOST}:{memcached.port}", in_memcached),
        "lmdb": (f"lmdb://{tmp_path}/state", in_lmdb),
    }
    return urls[store]


@pytest.fixture(scope="module")
def memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with memcached_running(tmp_path_factory.mktemp("memcached")) as server:
        yield server


@each("algorithm", NAMES)
def test_a_key_whose_state_cannot_be_decoded_starts_anew(
    damaged: tuple[str, Damage],
    way: Any,
    algorithm: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other limits of the request continue. The store decides, and the log has one line without the key."""
    monkeypatch.setitem(algorithms._BUILDERS, OwnWindow.name, OwnWindow)
    url, damage = damaged
    counting: Any = {"limits": "5/hour", "algorithm": OwnWindow if algorithm == "own" else algorithm}
    if algorithm == "concurrent":
        counting = {"limits": "5 concurrent"}
    name = uuid4().hex
    rules = [
        Rule(name=name, **counting),
        Rule(name=f"other-{name}", limits="100/day", algorithm="fixed-window"),
    ]
    caplog.clear()
    limiter = Limiter(rules, open_store(url, PATIENT), settings=Settings(rejection_cache=0))
    for expected in (97, 94):
        verdict = [way(limiter).hit(WHO) for _ in range(3)][-1]
        assert [decision.remaining for decision in verdict.decisions] == [2, expected]
        damage(limiter, verdict.decisions[0].hit[1])
    limiter.refund(verdict)  # nothing is there to refund
    assert not any(decision.local for decision in way(limiter).hit(WHO).decisions)
    way(limiter).close()
    assert limiter.remote is not None
    assert (limiter.remote.breaker.open, limiter.local_decisions) == (False, 0)
    (warning,) = [message for message in caplog.messages if "start anew" in message]
    assert f"(rule {name}); such keys start anew" in warning
    assert WHO["ip"] not in warning


def test_several_damaged_states_of_one_request_start_anew(damaged: tuple[str, Damage], way: Any) -> None:
    """The store decides each of them; this is no outage."""
    url, damage = damaged
    rules = [Rule(name=uuid4().hex, limits="5/hour", on_store_error="deny") for _ in range(3)]
    limiter = Limiter(rules, open_store(url, PATIENT), settings=Settings(rejection_cache=0, fleet_size=1))
    for decision in way(limiter).hit(WHO).decisions:
        damage(limiter, decision.hit[1])
    verdict = way(limiter).hit(WHO)
    way(limiter).close()
    assert (verdict.status, [decision.remaining for decision in verdict.decisions]) == (200, [4, 4, 4])
    assert limiter.local_decisions == 0


def test_a_window_that_is_in_no_calendar_starts_anew(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no date for its end. The store still decides."""
    files = note_files(monkeypatch)
    limiter = Limiter([Rule(name="api", limits="5 per calendar month")], open_store(f"lmdb://{tmp_path}/state"))
    (decision,) = way(limiter).hit(WHO).decisions
    with files[-1].begin(write=True) as txn:
        txn.put(PREFIX + b"state:" + decision.hit[1].encode(), bytes(8) + b"9" * 24 + b":1:1")
    verdict = way(limiter).hit(WHO)
    way(limiter).close()
    assert ([each.remaining for each in verdict.decisions], limiter.local_decisions) == ([4], 0)


class DamagedStore(SharedStore):
    """A store whose states can never be decoded."""

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        super().apply(hits, now, consume)
        raise StateError("damaged", [hit.key for hit in hits])


def test_a_state_that_is_damaged_again_is_decided_by_policy(way: Any) -> None:
    """The circuit breaker stays closed."""
    limiter = Limiter([Rule(name="api", limits="2/hour")], DamagedStore(), ManualClock(1e6), Settings(fleet_size=1))
    verdicts = [way(limiter).hit(WHO) for _ in range(9)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 2 + [False] * 7
    assert limiter.local_decisions == 9
    assert limiter.remote is not None
    assert (limiter.remote.breaker.failures, limiter.remote.breaker.open) == (0, False)


def test_a_reply_without_a_state_ends_a_row_of_failures(shared: SharedStore) -> None:
    """The store has replied, so two failures before it do not count."""
    limiter = Limiter([Rule(name="api", limits="9/hour")], shared, settings=Settings(fleet_size=1, rejection_cache=0))
    shared.down = True
    limiter.hit(WHO), limiter.hit(WHO)
    assert limiter.remote is not None
    assert limiter.remote.breaker.failures == 2
    limiter.remote.store = DamagedStore()  # type: ignore[union-attr]
    limiter.hit(WHO)
    assert limiter.remote.breaker.failures == 0
