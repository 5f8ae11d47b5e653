"""``SqliteCounts``: a traffic log in a file of SQLite.

It uses a rollback journal: with several writers, the write-ahead log loses data before SQLite 3.51.3. Each call opens
a connection of its own, so that no connection outlives a fork or changes its thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ..errors import ConfigError, StoreError
from .address import LogAddress
from .batch import OTHER, Batch, Events, fold_events, without_room
from .retention import Retention, Run
from .store import CountStore

_BUSY: Final = 10.0
"""Seconds to wait for another process that writes."""
_APPLICATION: Final = 0x524C_5431
"""Marks the file of a traffic log, for this package and for the program ``file``."""
# The rows of one event are together, so that a curve reads few pages. The index has those of one bucket together.
_SCHEMA: Final = (
    f"PRAGMA application_id = {_APPLICATION}",
    "CREATE TABLE log (retention TEXT NOT NULL)",
    """
    CREATE TABLE totals (
        step INTEGER, event TEXT, start INTEGER, n INTEGER NOT NULL, PRIMARY KEY (step, event, start)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX by_start ON totals (step, start, event, n)",
    """
    CREATE TABLE clients (
        step INTEGER, event TEXT, start INTEGER, client TEXT, n INTEGER NOT NULL,
        PRIMARY KEY (step, event, start, client)
    ) WITHOUT ROWID
    """,
)
_ADD_TOTAL: Final = "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_ADD_CLIENT: Final = "INSERT INTO clients VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_EXPIRE: Final = (
    """
    DELETE FROM clients WHERE step = :step AND start <= :last
    AND event IN (SELECT event FROM totals WHERE step = :step AND start <= :last)
    """,
    "DELETE FROM totals WHERE step = :step AND start <= :last",
)
_KNOWN_EVENTS: Final = "SELECT event FROM totals WHERE step = ? AND start = ?"
_KNOWN_CLIENTS: Final = "SELECT client FROM clients WHERE step = ? AND start = ? AND event = ?"
_CURVE: Final = """
    SELECT start, n FROM totals WHERE step = :step AND event = :event AND start >= :start AND start < :end
"""
# One lookup for each bucket: other clients are not read.
_CLIENT_CURVE: Final = """
    WITH RECURSIVE run(start) AS (SELECT :start UNION ALL SELECT start + :step FROM run WHERE start + :step < :end)
    SELECT start, n FROM run CROSS JOIN clients USING (start)
    WHERE step = :step AND event = :event AND client = :client
"""
_CLIENTS: Final = """
    SELECT client, sum(n) FROM clients WHERE step = :step AND event = :event AND start >= :start AND start < :end
    GROUP BY client
"""
_EVENTS_OF_MOST: Final = """
    SELECT event, sum(n) FROM totals NOT INDEXED WHERE step = :step AND start >= :start AND start < :end
    GROUP BY event
"""
# The index reads no rows of other times, but sorts those that it reads.
_EVENTS_OF_PART: Final = _EVENTS_OF_MOST.replace("NOT INDEXED", "INDEXED BY by_start")
_LENGTH: Final = """
    SELECT (SELECT max(start) FROM totals WHERE step = :step) - (SELECT min(start) FROM totals WHERE step = :step)
"""
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DAMAGED: Final = (
    "{path} is damaged ({error}). To start a new log, move the file away. To recover its counts, run:"
    " sqlite3 {path} .recover | sqlite3 recovered.db"
)


class SqliteCounts(CountStore):
    """Keeps counts in a file, which the processes of one machine share."""

    def __init__(self, path: str, retention: Retention) -> None:
        self._path = path
        self._retention = retention
        if not Path(path).parent.is_dir():
            raise ConfigError(f"the folder of the traffic log {path} does not exist. Create it, or correct the path")

    def write(self, batch: Batch, token: str, now: int) -> None:
        with self._writing() as db:
            for bucket, events in batch.items():
                self._add(db, *bucket, events)
            for step, kept in self._retention.resolutions:
                for statement in _EXPIRE:
                    db.execute(statement, {"step": step, "last": now - kept - 2 * step})

    def counts(self, run: Run, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        statement, values = _CURVE if client is None else _CLIENT_CURVE, {**run._asdict(), "client": client}
        with self._reading() as db:
            return {event: dict(db.execute(statement, {**values, "event": event}) if db else ()) for event in events}

    def clients(self, runs: Sequence[Run], event: str) -> dict[str, int]:
        return self._sums(runs, lambda db, run: db.execute(_CLIENTS, {**run._asdict(), "event": event}))

    def events(self, runs: Sequence[Run]) -> dict[str, int]:
        return self._sums(runs, _events_of)

    def distinct(self, runs: Sequence[Run], event: str) -> int:
        return len(self.clients(runs, event).keys() - {OTHER})

    def retention(self) -> str | None:
        with self._reading() as db:
            return None if db is None else str(db.execute("SELECT retention FROM log").fetchone()[0])

    def _sums(self, runs: Sequence[Run], query: Callable[[sqlite3.Connection, Run], sqlite3.Cursor]) -> dict[str, int]:
        total = Counter[str]()
        with self._reading() as db:
            if db is not None:
                for run in runs:
                    total.update(dict(query(db, run)))
        return total

    def _add(self, db: sqlite3.Connection, step: int, start: int, events: Events) -> None:
        def names_in(statement: str, *values: object) -> set[str]:
            return {name for (name,) in db.execute(statement, (step, start, *values))}

        for event, counts in fold_events(events, names_in(_KNOWN_EVENTS)).items():
            db.execute(_ADD_TOTAL, (step, event, start, counts.total))
            if clients := counts.clients:
                left_out = without_room(clients, names_in(_KNOWN_CLIENTS, event))
                rows = ((OTHER if name in left_out else name, number) for name, number in clients.items())
                db.executemany(_ADD_CLIENT, ((step, event, start, *row) for row in rows))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which ends with the block. An error undoes it."""
        with self._errors(), suppress(FileExistsError):  # the names of clients are for the owner of the file alone
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._connection() as db:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("BEGIN IMMEDIATE")
            if not self._is_log(db):
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO log VALUES (?)", (str(self._retention),))
            yield db
            db.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection that reads one state of the file; None when there is no log yet."""
        if not Path(self._path).exists():
            yield None
            return
        with self._connection() as db:
            db.execute("BEGIN")
            yield db if self._is_log(db) else None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        uri = f"file:{quote(self._path)}?mode=rw"
        with self._errors(), closing(sqlite3.connect(uri, _BUSY, isolation_level=None, uri=True)) as db:
            yield db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise ``StoreError`` for an error of SQLite or of the file system."""
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                raise StoreError(_DAMAGED.format(path=self._path, error=error)) from error
            raise StoreError(f"the traffic log {self._path} failed: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot create the traffic log {self._path}: {error.strerror}") from error

    def _is_log(self, db: sqlite3.Connection) -> bool:
        """Return whether the file is a traffic log; False for an empty file. Another retention is an error."""
        if (application := db.execute("PRAGMA application_id").fetchone()[0]) == _APPLICATION:
            return True
        if application or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{self._path} is a database of another program. Name another file for the traffic log")
        return False


def _events_of(db: sqlite3.Connection, run: Run) -> sqlite3.Cursor:
    """Return the total of each event in a run, by the faster of two ways."""
    length: int = db.execute(_LENGTH, run._asdict()).fetchone()[0] or 0
    statement = _EVENTS_OF_MOST if 2 * (run.end - run.start) > length else _EVENTS_OF_PART
    return db.execute(statement, run._asdict())


def open_address(address: LogAddress) -> SqliteCounts:
    return SqliteCounts(str(address.place), address.retention)
