"""``SqliteCounts``: a traffic log in a file of SQLite.

It uses a rollback journal: with several writers, the write-ahead log loses data before SQLite 3.51.3. Each call opens
a connection of its own, so that no connection outlives a fork or changes its thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..errors import ConfigError, StoreError
from .counts import MAX_EVENTS, Batch, EventCounts, Events, clients_of, fit_events
from .retention import Retention
from .store import CountStore

_BUSY: Final = 10.0
"""Seconds to wait for another process that writes."""
_APPLICATION: Final = 0x524C_5431
"""Marks the file of a traffic log, for this package and for the program ``file``."""
_VERSION: Final = 2
# The rows of one event are together, so that a curve reads few pages. The index has those of one bucket together.
_SCHEMA: Final = (
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
    "CREATE TABLE log (retention TEXT NOT NULL)",
    """
    CREATE TABLE totals (
        step INTEGER, event TEXT, start INTEGER, n INTEGER NOT NULL, PRIMARY KEY (step, event, start)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX by_start ON totals (step, start, event, n)",
    """
    CREATE TABLE clients (
        step INTEGER, event TEXT, start INTEGER, data BLOB NOT NULL, PRIMARY KEY (step, event, start)
    )
    """,
)
_ADD_TOTAL: Final = "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_RUN: Final = "step = :step AND event = :event AND start >= :start AND start < :end"
_TOTALS: Final = f"SELECT start, n FROM totals WHERE {_RUN}"  # noqa: S608
_CLIENTS: Final = f"SELECT start, data FROM clients WHERE {_RUN}"  # noqa: S608
_BUCKET_CLIENTS: Final = "SELECT data FROM clients WHERE step = ? AND event = ? AND start = ?"
_EVENTS: Final = """
    SELECT event, sum(n) FROM totals INDEXED BY by_start WHERE step = :step AND start >= :start AND start < :end
    GROUP BY event
"""
_EXPIRE: Final = (
    """
    DELETE FROM clients WHERE step = :step AND start <= :last
    AND event IN (SELECT DISTINCT event FROM totals WHERE step = :step AND start <= :last)
    """,
    "DELETE FROM totals WHERE step = :step AND start <= :last",
)


class SqliteCounts(CountStore):
    """Keeps counts in a file, which the processes of one machine share."""

    def __init__(self, path: str, retention: Retention) -> None:
        self.path = path
        self._retention = retention
        if not Path(path).parent.is_dir():
            raise ConfigError(f"the folder of the traffic log {path} does not exist. Create it, or correct the path")

    def write(self, batch: Batch, token: str, now: int) -> str | None:
        """Add the counts in one transaction, which an error undoes."""
        with self._errors(), suppress(FileExistsError):  # the names of clients are for the owner of the file alone
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._connection() as db:
            db.execute("BEGIN")  # at one moment: another process may create the log now
            self._has_log(db)  # the next statements would change the database of another program
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("BEGIN IMMEDIATE")
            if not self._has_log(db):
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO log VALUES (?)", [str(self._retention)])
            (retention,) = db.execute("SELECT retention FROM log").fetchone()
            if retention != str(self._retention):
                return str(retention)
            for (resolution, start), events in batch.items():
                _add(db, resolution.step, start, events)
            self._drop_expired(db, now)
            db.execute("COMMIT")
        return None

    def _drop_expired(self, db: sqlite3.Connection, now: int) -> None:
        for resolution in self._retention.resolutions:
            for statement in _EXPIRE:
                db.execute(statement, {"step": resolution.step, "last": now - resolution.end_of(0)})

    def totals(self, run: range, events: Sequence[str]) -> dict[str, dict[int, int]]:
        return {event: dict(rows) for event, rows in zip(events, self._rows(_TOTALS, run, events), strict=True)}

    def clients(self, run: range, event: str) -> dict[int, EventCounts]:
        (rows,) = self._rows(_CLIENTS, run, [event])
        with self._errors():
            return {start: clients_of(data) for start, data in rows}

    def events(self, run: range) -> dict[str, int]:
        (rows,) = self._read([(_EVENTS, _limits(run))])
        return dict(rows)

    def retention(self) -> str | None:
        (rows,) = self._read([("SELECT retention FROM log", {})])
        return rows[0][0] if rows else None

    def _rows(self, statement: str, run: range, events: Sequence[str]) -> list[list[Any]]:
        """Return the start and the value of each bucket of events."""
        return self._read([(statement, {**_limits(run), "event": event}) for event in events])

    def _read(self, calls: Iterable[tuple[str, Mapping[str, object]]]) -> list[list[Any]]:
        """Return the rows of statements, each with its values, in one state of the file: none when there is no log."""
        if not Path(self.path).exists():
            return [[] for _ in calls]
        with self._connection() as db:
            db.execute("BEGIN")
            has_log = self._has_log(db)
            return [db.execute(*call).fetchall() if has_log else [] for call in calls]

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to the file, which must exist. Each statement is a transaction."""
        uri = f"file:{quote(self.path)}?mode=rw"
        with self._errors(), closing(sqlite3.connect(uri, timeout=_BUSY, isolation_level=None, uri=True)) as db:
            yield db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise ``StoreError`` for an error of SQLite or of the file system."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            # Other bytes, a text that is not UTF-8, a sketch of another size, or a lost row.
            if not isinstance(error, sqlite3.OperationalError) or "decode" in str(error):
                raise StoreError(f"{self.path} is damaged ({error}). To start a new log, move the file away") from error
            raise StoreError(f"the traffic log {self.path} failed: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot create the traffic log {self.path}: {error.strerror}") from error

    def _has_log(self, db: sqlite3.Connection) -> bool:
        """Return whether the file has a log, and not that of another program or version. An empty file has none."""
        if (application := db.execute("PRAGMA application_id").fetchone()[0]) == _APPLICATION:
            if (version := db.execute("PRAGMA user_version").fetchone()[0]) != _VERSION:
                text = f"{self.path} has version {version} of the traffic log, and this ratelimit_mw needs {_VERSION}"
                raise StoreError(f"{text}. To start a new log, move the file away, or name another file")
            return True
        if application or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{self.path} is a database of another program. Name another file for the traffic log")
        return False


def _limits(run: range) -> dict[str, object]:
    return {"step": run.step, "start": run.start, "end": run.stop}


def _add(db: sqlite3.Connection, step: int, start: int, events: Events) -> None:
    known = {event for (event,) in db.execute("SELECT event FROM totals WHERE step = ? AND start = ?", (step, start))}
    fitting = fit_events(events, known, MAX_EVENTS)
    db.executemany(_ADD_TOTAL, ((step, event, start, counts.total) for event, counts in fitting.items()))
    for event, counts in fitting.items():
        if counts.has_clients:
            place = step, event, start
            known = db.execute(_BUCKET_CLIENTS, place).fetchone()
            data = counts.clients_added_to(known and known[0])
            db.execute("REPLACE INTO clients VALUES (?, ?, ?, ?)", (*place, data))
