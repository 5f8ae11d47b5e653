"""A traffic log in SQLite: several writers, damaged files, and files of other programs."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from forked import become_child
from redis_handles import address
from servers import Server
from tables import each
from traffic_records import NOW

from ratelimit_mw import ConfigError, StoreError
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.traffic import TrafficLog, sqlite

CLOCK = ManualClock(NOW)
RARE = pytest.mark.thorough


def opened(path: Path) -> TrafficLog:
    return TrafficLog(f"sqlite:///{path}", clock=CLOCK)


def recorded(path: Path, count: int = 1) -> TrafficLog:
    log = opened(path)
    for i in range(count):
        log.record("a", f"c{i}")
    log.flush()
    return log


def test_reading_creates_no_file(tmp_path: Path) -> None:
    """An empty file is a log without a record, too. The log has the names of clients, so only its owner can read it."""
    path, empty = tmp_path / "log.db", tmp_path / "empty.db"
    assert opened(path).total("a", NOW, NOW) == 0
    assert not path.exists()
    assert recorded(path).total("a", NOW, NOW) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    empty.touch()
    assert (opened(empty).events(NOW, NOW), opened(empty).distinct("a", NOW, NOW)) == ({}, 0)
    assert recorded(empty).total("a", NOW, NOW) == 1


def test_the_file_has_a_rollback_journal(tmp_path: Path) -> None:
    """Also a file that another program has switched to a write-ahead log."""
    path = tmp_path / "log.db"
    recorded(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    assert recorded(path).total("a", NOW, NOW) == 2
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("damage", [slice(0, 100), slice(100, 5000), slice(4096, None)])
def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path: Path, damage: slice) -> None:
    """The counts wait until the file is moved away."""
    path = tmp_path / "log.db"
    recorded(path, 500)
    data = bytearray(path.read_bytes())
    data[damage] = b"\xff" * len(data[damage])
    path.write_bytes(data)
    log = opened(path)
    log.record("a", "c")
    with pytest.raises(StoreError, match=r"log.db is damaged .* move the file away"):
        log.flush()
    path.unlink()
    assert log.total("a", NOW, NOW) == 1


@pytest.mark.parametrize("statement", ["DELETE FROM log", "UPDATE clients SET data = 5"])
def test_a_file_with_lost_rows_is_damaged(tmp_path: Path, statement: str) -> None:
    """A page of zeros may be an empty table for SQLite."""
    path = tmp_path / "log.db"
    recorded(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()
    log = opened(path)
    log.record("a", "c")
    with pytest.raises(StoreError, match=r"log.db is damaged .* move the file away"):
        log.flush()
    path.unlink()
    log.flush()


@each(
    ("statement", "message"),
    [
        ("CREATE TABLE orders (id)", "is a database of another program. Name another file"),
        ("PRAGMA user_version = 3", "has version 3 of the traffic log, and .* needs 2"),
        ("PRAGMA user_version = 1", "has version 1 of the traffic log, and .* needs 2. .* move the file away, or name"),
    ],
)
def test_another_database_stays_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, statement: str, message: str
) -> None:
    """The error names the file, its version and what to do."""
    path = tmp_path_factory.mktemp("logs") / "shop.db"
    if statement.startswith("PRAGMA"):
        recorded(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(statement)
    before, log = path.read_bytes(), opened(path)
    with pytest.raises(StoreError, match=f"shop.db {message}"):
        log.total("a", NOW, NOW)
    log.record("a")
    with pytest.raises(StoreError, match=f"shop.db {message}"):
        log.flush()
    become_child()  # nothing is left for the end of the process
    assert path.read_bytes() == before


def test_a_write_that_fails_changes_nothing(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write has the same counts and the same error, even when it drops clients."""
    log = opened(tmp_path / "log.db")
    for i in range(1, 9):
        log.record("a", f"c{i}", i)
    with monkeypatch.context() as failing:
        failing.setattr(sqlite, "_EXPIRE", ("DELETE FROM absent",))
        for _ in range(2):
            with pytest.raises(StoreError, match="no such table: absent"):
                log.flush()
    found = log.top("a", NOW, NOW)
    assert (found, found.complete_from) == ([("c8", 8), ("c7", 7), ("c6", 6)], 5 + 1)
    assert log.total("a", NOW, NOW) == 36
    log.close()


def test_a_file_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the folder of the traffic log .* does not exist"):
        opened(tmp_path / "absent" / "log.db")
    log = opened(tmp_path / "log.db")
    (tmp_path / "log.db").mkdir()
    log.record("a")
    with pytest.raises(StoreError, match=r"the traffic log .*log.db failed: unable to open"):
        log.flush()
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError, match=r"cannot create the traffic log .*: No such file"):
        log.flush()
    become_child()  # nothing is left for the end of the process


def test_buckets_end_with_their_retention(tmp_path: Path, few: int) -> None:
    """The rows of events and clients go away, also of events that are no longer recorded."""
    path, clock = tmp_path / "log.db", ManualClock(NOW)
    log = TrafficLog(f"sqlite:///{path}?retention=1m:1h,1h:1d", clock=clock)
    for i in range(9):
        log.record("a", f"x{i}", 10 + i)
    log.flush()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT DISTINCT step FROM clients").fetchall() == [(3600,)]
    rows = []
    for seconds in (3600, 120, 86_400):
        clock.advance(seconds)
        log.record("b")
        log.flush()
        with closing(sqlite3.connect(path)) as db:
            tables = ("totals", "clients")
            found = [db.execute(f"SELECT step FROM {table} WHERE event = 'a'") for table in tables]
            rows.append([sorted({step for (step,) in each}) for each in found])
    assert rows == [[[60, 3600], [3600]], [[3600]] * 2, [[3600]] * 2]
    clock.advance(7200)
    log.record("b")
    log.flush()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM clients").fetchone() == (0,)


@each(
    ("url", "problem"),
    [
        ("sqlite:///", "needs the path of a file"),
        ("sqlite://traffic.db", "needs the path of a file"),
        ("sqlite://[", "needs the path of a file"),
        ("sqlite:///folder/", "needs the path of a file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a.db?mode=ro", "takes only the option retention"),
        ("sqlite:///a.db?retention=1m:1d&retention=1m:1d", "twice"),
        ("sqlite:///a.db?retention=1m", "cannot parse retention"),
        ("sqlit:///a.db", "Did you mean 'sqlite'"),
        ("lmdb:///a", "cannot use the scheme 'lmdb'"),
        ("traffic.db", 'for example "sqlite:///traffic.db"'),
        ("redis://cache:x/0", "store URL|HOST|NAME"),
        (5, "expected the URL"),
    ],
)
def test_a_url_that_is_no_log_is_an_error(url: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrafficLog(url)


def test_the_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path belongs to the working directory of the start, and the URL may escape characters."""
    monkeypatch.chdir(tmp_path)
    log = TrafficLog("sqlite:///log%20%23%3F.db?retention=1m:1h", clock=CLOCK)
    monkeypatch.chdir("/")
    log.record("a")
    log.flush()
    assert [each.name for each in tmp_path.iterdir()] == ["log #?.db"]
    with pytest.raises(ConfigError, match="Set it once"):
        TrafficLog("sqlite:///log.db?retention=1m:1h", "1m:1h")


def test_a_writer_waits_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush waits while another process writes. After its time the counts are kept."""
    path = tmp_path / "log.db"
    log = recorded(path)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        log.record("a")
        monkeypatch.setattr(sqlite, "_BUSY", 0.01)
        with pytest.raises(StoreError, match="locked"):
            log.flush()
        monkeypatch.setattr(sqlite, "_BUSY", 200)
        waiting = threading.Thread(target=log.flush)
        waiting.start()
        db.execute("ROLLBACK")
        waiting.join()
    assert log.total("a", NOW, NOW) == 2


def test_a_log_that_another_process_creates_is_no_other_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that write for the first time at the same moment: one of them waits."""
    logs = [opened(tmp_path / "log.db") for _ in range(2)]
    first, second = logs

    class Meanwhile(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if "sqlite_master" in statement and logs:
                logs.clear()
                with suppress(StoreError):  # the file is locked
                    second.flush()
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite, "_BUSY", 0.01)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Meanwhile))
    first.record("a")
    second.record("a")
    first.flush()
    assert second.total("a", NOW, NOW) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", [*(pytest.param(each, marks=RARE) for each in ("returns", "exits")), "is terminated"]
)
@pytest.mark.parametrize("store", ["sqlite", pytest.param("redis", marks=RARE)])
def test_processes_lose_no_record(tmp_path: Path, redis_server: Server, store: str, ending: str) -> None:
    """Four processes, each with a forked child, record in one log, even in their last moment."""
    prefix = f"?prefix={tmp_path.name}:"
    url = f"sqlite:///{tmp_path}/log.db" if store == "sqlite" else address(redis_server, prefix)
    program = [sys.executable, SUPPORT / "traffic_worker.py", url, ending, "2000"]
    workers = [subprocess.Popen(program) for _ in range(4)]
    assert [worker.wait(200) for worker in workers] == [0] * 4
    log = TrafficLog(url)
    assert log.events(0, 1e10) == {"child": 4 * 2000, "parent": 4 * 2000}
    assert sum(number for _, number in log.top("child", 0, 1e10, 100)) == 4 * 2000
