"""The LMDB store with damaged files and records: each call ends in time, with a decision or a StoreError."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from lmdb_kit import NOW, hit, limit_of, note_files, open_at
from traces import SPECS

from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.decision import Charge, Correction, Hit, Limit
from ratelimit_mw.errors import StoreError
from ratelimit_mw.quota import Quota
from ratelimit_mw.stores.lmdb.records import META, PREFIX
from ratelimit_mw.stores.lmdb.store import LmdbStore
from ratelimit_mw.testing import ManualClock

HITS = 150
FLIPS = 100


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[lmdb.Environment]:
    return note_files(monkeypatch)


def test_file_that_is_no_database_is_a_store_error(path: Path) -> None:
    """Once the file is deleted, the store continues."""
    path.mkdir()
    (path / "data.mdb").write_bytes(b"not a database" * 1000)
    with closing(open_at(path)) as store:
        for _ in range(2):
            with pytest.raises(StoreError, match="failed: InvalidError"):
                hit(store, limit_of())
        (path / "data.mdb").unlink()
        assert hit(store, limit_of()).allowed


@pytest.mark.parametrize("algorithm", ["fixed-window", "sliding-window-log"])
def test_record_in_no_known_form_is_a_store_error(path: Path, files: list[lmdb.Environment], algorithm: str) -> None:
    """Other keys are not affected."""
    clock = ManualClock(NOW)
    with closing(open_at(path, clock=clock)) as store:
        hit(store, limit_of("1/minute"))
        broken = PREFIX + b"state:" + limit_of(algorithm=algorithm).prefix.encode() + b"broken"
        write(files, {broken: bytes(8) + b"?!"})
        with pytest.raises(StoreError, match="damaged state: ValueError"):
            hit(store, limit_of(algorithm=algorithm), "broken")
        assert not hit(store, limit_of("1/minute")).allowed


@pytest.mark.parametrize("name", [*SPECS, "concurrency"])
def test_flipped_bytes_end_in_a_decision_or_a_store_error(path: Path, files: list[lmdb.Environment], name: str) -> None:
    """Whatever bytes of a state change, no call loops or raises another error, and other keys are not affected."""
    chance = random.Random(name)
    quota = f"{HITS}/minute" if name in SPECS else f"{HITS} concurrent"
    limit = build_limit("api", 0, Quota.parse(quota), SPECS.get(name))
    clock = ManualClock(NOW)
    with closing(open_at(path, clock=clock)) as store:
        for _ in range(HITS):
            clock.advance(0.2)
            hit(store, limit)
        healthy = records_of(files)
        for _ in range(FLIPS):
            write(files, healthy | flipped(healthy, chance))
            for call in calls(store, limit, chance):
                decided_or_failed(call)
            assert hit(store, limit_of("1000000/minute"), "another client").allowed
        store.forget([limit.prefix + "a"])
        assert hit(store, limit).allowed, "an operator can reset a damaged key"


def test_flipped_bytes_in_shared_records_end_in_a_decision_or_a_store_error(
    path: Path, files: list[lmdb.Environment]
) -> None:
    """The identity of the environment and the position of the sweep are read by all calls, and may be damaged too."""
    chance = random.Random(1)
    clock = ManualClock(NOW)
    limit = limit_of("1000000/minute")
    with closing(open_at(path, clock=clock)) as store:
        for number in range(100):
            hit(store, limit, str(number))
        healthy = {name: value for name, value in records_of(files).items() if name.startswith(META)}
    for _ in range(40):
        with closing(open_at(path, clock=clock)) as store:
            store.ping()
            write(files, healthy | flipped(healthy, chance))
        with closing(open_at(path, clock=clock)) as store:
            for number in range(20):
                assert hit(store, limit, str(number)).allowed


def calls(store: LmdbStore, limit: Limit, chance: random.Random) -> Iterator[object]:
    """Each kind of call on one key, at the time of the store and at a given time."""
    key = limit.prefix + "a"
    for now in (None, NOW * 1_000_000 + chance.randrange(60_000_000)):
        charge = Charge((NOW + chance.randrange(30)) * 1_000_000, 1)
        yield lambda now=now: store.apply([Hit(limit, key, 1)], now)
        yield lambda now=now: store.apply([Hit(limit, key, HITS)], now)
        yield lambda now=now: store.apply([Hit(limit, key, 1), Hit(limit, limit.prefix + "b", 1)], now)
        yield lambda now=now, charge=charge: store.correct([Correction(limit, key, 1, charge)], now)
        yield lambda now=now: store.correct([Correction(limit, key, 1, None)], now)


def decided_or_failed(call: object) -> None:
    try:
        call()  # type: ignore[operator]
    except StoreError as error:
        if "time budget" in str(error):
            pytest.fail("the call was in a loop until its budget ended")


def records_of(files: list[lmdb.Environment]) -> dict[bytes, bytes]:
    with files[-1].begin(write=True) as txn, txn.cursor() as cursor:
        return dict(cursor)


def write(files: list[lmdb.Environment], records: dict[bytes, bytes]) -> None:
    with files[-1].begin(write=True) as txn:
        for name, value in records.items():
            txn.put(name, value)


def flipped(records: dict[bytes, bytes], chance: random.Random) -> dict[bytes, bytes]:
    """One of the records with a few bits flipped."""
    name = chance.choice(list(records))
    value = bytearray(records[name])
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        value[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
    return {name: bytes(value)}
