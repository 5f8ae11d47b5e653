"""What stands in an LMDB store's files: which keys, what is written, what is swept, what is left alone."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from lmdb_kit import NOW, SIZE, hit, limit_of, names, open_at, states

from ratelimit_mw.decision import Charge, Correction, Hit
from ratelimit_mw.stores.lmdb.keys import END, PREFIX, state_name
from ratelimit_mw.stores.lmdb.store import LmdbStore
from ratelimit_mw.testing import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = open_at(path)
    yield store
    store.close()


def test_keys_can_be_read_by_their_prefix(store: LmdbStore, path: Path) -> None:
    """State stands under the text of its key; one that is too long for LMDB under its limit and a digest."""
    limit = limit_of()
    for client in ("192.0.2.7", "x" * 1000, "x" * 1001):
        assert hit(store, limit, client, 2).allowed
    store.close()
    found = [name.removeprefix(PREFIX) for name in states(path)]
    assert found[2] == b"state:1|api|fixed-window|1m|192.0.2.7"
    assert [name[: -2 * 16] for name in found[:2]] == [b"state#1|api|fixed-window|1m|"] * 2
    assert found[0] != found[1]


def test_every_length_of_a_key_has_its_own_state(store: LmdbStore) -> None:
    """Around the longest name that LMDB takes nothing is cut off and nothing rejected."""
    limit = limit_of("1/minute")
    lengths = [length - len(state_name(limit.prefix, b"")) for length in range(505, 518)]
    assert [hit(store, limit, "x" * length).allowed for length in lengths] == [True] * 13
    assert [hit(store, limit, "x" * length).allowed for length in lengths] == [False] * 13


def test_what_changes_nothing_writes_nothing(store: LmdbStore, path: Path) -> None:
    """Rejections and looks leave the file as it is, so attack traffic costs no writes."""
    limit = limit_of("2/minute", "sliding-window-log")
    hit(store, limit, cost=2)
    before = (path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()
    for _ in range(50):
        assert not hit(store, limit).allowed
        hit(store, limit, "b", cost=0)
        store.apply([Hit(limit, limit.prefix + "c", 1)], consume=False)
        store.correct([Correction(limit, limit.prefix + "a", 1, Charge(NOW, 1))])
    assert ((path / "data.mdb").stat().st_mtime_ns, (path / "data.mdb").read_bytes()) == before


@pytest.mark.parametrize("which", [slice(0, 2), slice(2, 5), slice(0, 5)], ids=["before", "after", "around"])
def test_other_data_is_left_alone_and_synced(path: Path, which: slice, caplog: pytest.LogCaptureFixture) -> None:
    """An application's own records are what they were, and are not put at risk for the sake of speed."""
    around = [(b"a", b"1"), (PREFIX[:-1], b"\0" * 9), (END, b"\0" * 9), (b"\xffz", b""), (b"\xff\xff", b"3")]
    mine = dict(around[which])
    path.mkdir()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin(write=True) as txn:
        for name, value in mine.items():
            txn.put(name, value)
    clock = ManualClock(NOW)
    store = open_at(path, clock=clock)
    for number in range(40):
        hit(store, limit_of(), f"client {number}")
        clock.advance(61)
    store.forget(["a", "", limit_of().prefix])
    assert "synced to the disk" in caplog.text
    assert "open" not in (path / "ratelimit_mw.lock").read_text(), "nothing is at risk if the machine stops"
    store.close()
    with lmdb.open(str(path), map_size=SIZE) as env, env.begin() as txn:
        assert {name: txn.get(name) for name in mine} == mine


def test_the_sweep_deletes_what_may_go_and_nothing_else(path: Path) -> None:
    """A flood's records, pages of long logs among them, go as others write; who is still blocked stays blocked."""
    clock = ManualClock(NOW)
    store = open_at(path, clock=clock)
    log, long = limit_of("500/minute", "sliding-window-log"), limit_of("2/day", "token-bucket")
    for number in range(2_000):
        hit(store, limit_of(), f"client {number}")
        hit(store, log, f"client {number % 5}")
    hit(store, long, "blocked", 2)
    clock.advance(121)
    for number in range(1_500):
        hit(store, limit_of("2000/minute"), f"regular {number % 10}")
    assert not hit(store, long, "blocked").allowed
    store.close()
    assert len(states(path)) == 11
    assert not [name for name in names(path) if b"page:" in name]


def test_one_write_sweeps_little_and_the_next_process_goes_on(path: Path) -> None:
    """However many records may go, a write looks at 64; workers that live for one write get through all the same."""
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
    assert left[-1] == 201, "who comes first in the file and stays does not hold up the sweep"


def test_pages_go_with_a_key_that_is_forgotten(store: LmdbStore, path: Path) -> None:
    """Nothing of a long log is left behind."""
    log = limit_of("1000/day", "sliding-window-log")
    for number in range(300):
        hit(store, log, now=NOW * 1_000_000 + number)
    store.forget([log.prefix + "a"])
    store.close()
    assert states(path) == []


def test_a_given_time_keeps_a_state_for_a_day_at_least(path: Path) -> None:
    """The store's clock says nothing about a limiter that has one of its own; nor does it keep its states for ever."""
    clock = ManualClock(NOW)
    with closing(open_at(path, clock=clock)) as store:
        for hours, allowed in ((0, True), (23, False), (26, True)):
            clock.advance(hours * 3600)
            for number in range(200):
                hit(store, limit_of("1000000/second"), f"regular {number % 7}")
            assert hit(store, limit_of("1/20ms"), now=1_000_000).allowed is allowed
