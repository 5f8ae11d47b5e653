"""The records in the files of an LMDB store: their names, which calls write, and which records are deleted."""

import itertools
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from lmdb_kit import NOW, SIZE, hit, limit_of, mark_of, names, open_at, states

from ratelimit_mw.decision import Charge, Correction, Hit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb.records import PREFIX, state_name
from ratelimit_mw.stores.lmdb.store import LmdbStore
from ratelimit_mw.testing import ManualClock


def test_names_of_records_begin_with_their_limit(store: LmdbStore, path: Path) -> None:
    """A state has the name of its key. A key that is too long for LMDB becomes a digest."""
    limit = limit_of()
    for client in ("192.0.2.7", "x" * 1000, "x" * 1001):
        assert hit(store, limit, client, 2).allowed
    store.close()
    first, second, readable = [name.removeprefix(PREFIX) for name in states(path)]
    assert readable == b"state:1|api|fixed-window|1m|192.0.2.7"
    assert [name[: -2 * 16] for name in (first, second)] == [b"state#"] * 2
    assert first != second


def test_keys_of_any_length_have_their_own_state(store: LmdbStore) -> None:
    """Around the longest name that LMDB takes, no key is cut off and no two keys share a state."""
    limit = limit_of("1/day", "gcra")
    lengths = [length - len(state_name(limit.prefix)) for length in range(505, 518)]
    assert [hit(store, limit, "x" * length).allowed for length in lengths] == [True] * 13
    assert [hit(store, limit, "x" * length).allowed for length in lengths] == [False] * 13


def test_rejections_and_looks_write_nothing(store: LmdbStore, path: Path) -> None:
    """The file does not change, so attack traffic costs reads only."""
    limit = limit_of("2/minute", "sliding-window-log")
    hit(store, limit, cost=2)
    before = (path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()
    for _ in range(50):
        assert not hit(store, limit).allowed
        hit(store, limit, "b", cost=0)
        store.apply([Hit(limit, limit.prefix + "c", 1)], consume=False)
        store.correct([Correction(limit, limit.prefix + "a", 1, Charge(NOW, 1))])
    assert ((path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()) == before


@pytest.mark.parametrize("name", [b"a", b"\xffz"], ids=["before", "after"])
def test_the_environment_of_another_application_is_a_store_error(path: Path, name: bytes) -> None:
    """Its data stay as they are. Without a mark, no start of the machine sets them aside."""
    path.mkdir()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin(write=True) as txn:
        txn.put(name, b"1")
    with closing(open_at(path)) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="holds data of another application"):
                hit(store, limit_of())
        assert mark_of(path) == ""
    assert names(path) == [name]


def test_sweep_deletes_expired_records_only(path: Path) -> None:
    """Other writes delete the records of a flood. A blocked client stays blocked."""
    clock = ManualClock(NOW)
    store = open_at(path, clock=clock)
    log, long = limit_of("500/minute", "sliding-window-log"), limit_of("2/day", "token-bucket")
    for number in range(2_000):
        hit(store, limit_of(), f"client {number}")
        hit(store, log, f"client {number % 5}")
    hit(store, long, "blocked", 2)
    clock.advance(181)
    for number in range(1_500):
        hit(store, limit_of("2000/minute"), f"regular {number % 10}")
    assert not hit(store, long, "blocked").allowed
    store.close()
    assert len(states(path)) == 11


def test_next_process_continues_the_sweep(path: Path) -> None:
    """A write looks at 64 records only. Workers that live for one write complete the sweep together."""
    clock = ManualClock(NOW)
    store = open_at(path, clock=clock)
    for number in range(1_000):
        hit(store, limit_of("2/day") if number % 5 == 0 else limit_of(), f"client {number}")
    store.close()
    clock.advance(121)
    left = []
    for _ in range(20):
        hit(store, limit_of("100/minute"), "regular")
        store.close()
        left.append(len(states(path)))
    assert all(0 <= before - after <= 64 for before, after in itertools.pairwise(left))
    assert left[0] >= 900
    assert left[-1] == 201, "records that stay do not stop the sweep"


def test_given_time_keeps_a_state_for_a_day_or_its_longer_time(path: Path) -> None:
    """The store cannot know when a limiter with its own clock is done with a state, and does not keep it forever."""
    clock = ManualClock(NOW)
    with closing(open_at(path, clock=clock)) as store:
        for hours, allowed in ((0, True), (23, False), (26, True)):
            clock.advance(hours * 3600)
            for number in range(200):
                hit(store, limit_of("1000000/second"), f"regular {number % 7}")
            assert hit(store, limit_of("1/20ms"), now=1_000_000).allowed is allowed
            assert hit(store, limit_of("1/3d"), now=1_000_000).allowed is (hours == 0)
