"""Recovery of damaged files: all that SQLite can still read is in the new log, and nothing else."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
from traffic_records import NOW

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog, sqlite
from ratelimit_mw.traffic.retention import Retention
from ratelimit_mw.traffic.sqlite import SqliteCounts
from ratelimit_mw.traffic.sqlite_recovery import Recovered, recover

KEPT = "1m:1d,1h:90d"
START = NOW - 80_000
PAGE = 4096
CLOCK = ManualClock(NOW)


def opened(path: Path) -> TrafficLog:
    return TrafficLog(f"sqlite:///{path}", KEPT, CLOCK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of hundreds of pages, with a bucket of too many events and clients."""
    path, chance = tmp_path_factory.mktemp("whole") / "log.db", random.Random(1)
    log = opened(path)
    for _ in range(20_000):
        log.record(f"event {chance.randrange(9)}", f"c{chance.randrange(40)}", at=chance.uniform(START, NOW - 600))
    for i in range(2_100):
        log.record("flood", f"c{i}")
    for i in range(1_100):
        log.record(f"many {i}")
    log.close()
    return path


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "damaged.db"))


def page_of(path: Path, name: str) -> int:
    """The number of the root page of a table or index, from 0."""
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]) - 1


def overwrite(path: Path, *pages: int) -> None:
    data = bytearray(path.read_bytes())
    for page in pages:
        data[page * PAGE : (page + 1) * PAGE] = random.Random(page).randbytes(PAGE)
    path.write_bytes(data)


def recovered(damaged: Path, retention: str | None = None) -> tuple[TrafficLog, dict[str, Recovered]]:
    """The new log, and what was read of each table. The damaged file stays as it is."""
    before, path = damaged.read_bytes(), damaged.with_name("new.db")
    kept = None if retention is None else Retention(retention)
    found = recover(*(SqliteCounts(str(each), Retention(KEPT)) for each in (damaged, path)), kept)
    assert damaged.read_bytes() == before
    return opened(path), {each.table: each for each in found}


def events(log: TrafficLog) -> dict[str, int]:
    return dict(log.events(START, NOW))


def rows_of(path: Path) -> dict[str, set[tuple[object, ...]]]:
    tables = ("log", "totals", "clients", "dropped", "cells", "sums")
    with closing(sqlite3.connect(path)) as db:
        return {table: set(db.execute(f"SELECT * FROM {table}")) for table in tables}


def test_a_whole_file_is_copied(whole: Path, damaged: Path) -> None:
    """All rows are the same, and the new log takes further records."""
    log, found = recovered(damaged)
    assert rows_of(damaged.with_name("new.db")) == rows_of(whole)
    assert all(each.is_complete for each in found.values())
    log.record("flood", "c1", 5)
    assert log.total("flood", NOW, NOW) == 2_105
    assert log.distinct("flood", NOW, NOW) == opened(whole).distinct("flood", NOW, NOW)
    assert log.top("flood", NOW, NOW, 1)[0].client == "c1"


@pytest.mark.parametrize("table", ["totals", "by_start", "sums", "sqlite_autoindex_dropped_1"])
def test_what_the_file_has_twice_is_complete(whole: Path, damaged: Path, table: str) -> None:
    overwrite(damaged, page_of(damaged, table))
    _, found = recovered(damaged)
    assert all(each.is_complete for each in found.values())
    assert rows_of(damaged.with_name("new.db")) == rows_of(whole)


@pytest.mark.parametrize("table", ["clients", "dropped", "cells"])
def test_a_table_without_its_first_page_is_lost(whole: Path, damaged: Path, table: str) -> None:
    """The others are complete."""
    overwrite(damaged, page_of(damaged, table))
    log, found = recovered(damaged)
    assert [each.table for each in found.values() if not each.is_complete] == [table]
    assert found[table].rows == 0
    assert events(log) == events(opened(whole))


@pytest.mark.parametrize("seed", range(12))
def test_all_other_pages_are_read(whole: Path, damaged: Path, seed: int) -> None:
    """Some pages in the middle are lost: the new log has the other rows, and says of which tables it lacks some."""
    size = damaged.stat().st_size // PAGE
    pages = random.Random(seed).sample(range(12, size), 1 + seed)
    overwrite(damaged, *pages)
    log, found = recovered(damaged)
    before, after = rows_of(whole), rows_of(damaged.with_name("new.db"))
    for table, each in found.items():
        assert after[table] <= before[table]
        assert each.rows == len(after[table])
        assert each.is_complete <= (after[table] == before[table])
    assert len(after["clients"]) > len(before["clients"]) * (1 - 3 * len(pages) / size)
    assert sum(events(log).values()) > sum(events(opened(whole)).values()) * (1 - 3 * len(pages) / size)


def test_a_file_that_was_cut_off_is_read(whole: Path, damaged: Path) -> None:
    """Its pages until there are read, where SQLite still finds them."""
    damaged.write_bytes(damaged.read_bytes()[: -20 * PAGE - 7])
    _, found = recovered(damaged)
    before, after = rows_of(whole), rows_of(damaged.with_name("new.db"))
    assert not all(each.is_complete for each in found.values())
    for table in found:
        assert after[table] <= before[table]
    assert after["totals"]


def test_the_retention_is_that_of_the_url_where_the_file_has_none(whole: Path, damaged: Path) -> None:
    """Without its salt, the sketches of the log mean nothing."""
    overwrite(damaged, page_of(damaged, "log"))
    with pytest.raises(ConfigError, match=r"retention of .*damaged.db cannot be read. Add it to the URL, such as \?"):
        recovered(damaged)
    log, found = recovered(damaged, KEPT)
    assert not found["cells"].is_complete
    assert not found["dropped"].is_complete
    assert log.total("event 1", START, NOW) == opened(whole).total("event 1", START, NOW)
    log.record("new", "c", at=NOW - 1200)
    assert log.distinct("new", NOW - 1200, NOW - 1200) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:50], lambda data: bytes(len(data)), lambda data: data[: 7 * PAGE]]
)
def test_a_file_of_which_nothing_can_be_read_is_an_error(damaged: Path, damage: Callable[[bytes], bytes]) -> None:
    """There is no new log."""
    damaged.write_bytes(damage(damaged.read_bytes()))
    with pytest.raises(StoreError, match=r"nothing can be read from .*damaged.db. Restore a backup, or move"):
        recovered(damaged)
    assert opened(damaged.with_name("new.db"))._store.retention() is None


def test_rows_that_no_log_has_are_left_out(damaged: Path) -> None:
    """Damage inside a row can make any other row."""
    place, bytes_of = NOW // 60 * 60, bytes([255]) * PAGE
    rows = [
        ("totals", (61, "a", 61, 1)),
        ("totals", (60, "a", place + 1, 1)),
        ("totals", (60, b"a", place, 1)),
        ("totals", (60, "b", place, 0)),
        ("totals", (60, "a\0", place, 1)),
        ("clients", (60, "a", place, b"c", 1)),
        ("dropped", (60, "a", place, 1, bytes_of, 0)),
        ("dropped", (60, "b", place, 1, "short", 0)),
    ]
    before = rows_of(damaged)
    with closing(sqlite3.connect(damaged)) as db:
        for table, row in rows:
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        db.commit()
    _, found = recovered(damaged)
    assert rows_of(damaged.with_name("new.db")) == before
    assert {table for table, each in found.items() if not each.is_complete} == {"totals", "clients", "dropped"}


@pytest.mark.parametrize("version", range(1, len(sqlite.SCHEMA)))
def test_a_file_of_an_earlier_version_is_read(tmp_path: Path, version: int) -> None:
    path = tmp_path / "damaged.db"
    with closing(sqlite3.connect(path)) as db:
        for statement in chain.from_iterable(sqlite.SCHEMA[:version]):
            db.execute(statement, {"retention": KEPT, "salt": "5a17"})
        db.execute("INSERT INTO totals VALUES (60, 'a', ?, 9)", (NOW // 60 * 60,))
        if version > 1:
            sketch = ("a", NOW // 60 * 60, 3, bytes(PAGE))
            db.execute("INSERT INTO dropped (step, event, start, error, sketch) VALUES (60, ?, ?, ?, ?)", sketch)
        db.commit()
    log, found = recovered(path)
    assert log.total("a", NOW, NOW) == 9
    assert all(each.is_complete for each in found.values())
    assert found["dropped"].rows == (version > 1)


def test_a_log_is_not_overwritten(damaged: Path) -> None:
    recovered(damaged)
    with pytest.raises(ConfigError, match=r"new.db already contains a traffic log. Name a file that does not exist"):
        recovered(damaged)


def test_a_file_of_another_program_is_an_error(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE orders (id)")
    with pytest.raises(StoreError, match=r"shop.db is not a traffic log"):
        recovered(tmp_path / "shop.db")


def test_a_locked_file_is_an_error(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a damaged one."""
    monkeypatch.setattr(sqlite, "_BUSY", 0.01)
    with closing(sqlite3.connect(damaged, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"damaged.db failed: database is locked"):
            recovered(damaged)
