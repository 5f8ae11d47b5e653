"""``SqliteCounts``: a traffic log in a file of SQLite.

It uses a rollback journal: with several writers, the write-ahead log loses data before SQLite 3.51.3. Each call opens
a connection of its own, so that no connection outlives a fork or changes its thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ..errors import ConfigError, StoreError
from .address import LogAddress
from .batch import MOST, OTHER, Batch, EventCounts, Events, add_counts, fold_events, with_errors
from .count_min import cells_of
from .digest import create_salt
from .estimate import Estimate
from .hyperloglog import HyperLogLog
from .retention import Retention, Run
from .sqlite_schema import APPLICATION, BLOCK, SCHEMA, VERSION
from .store import CountStore

_BUSY: Final = 10.0
"""Seconds to wait for another process that writes."""
_ADD_TOTAL: Final = "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_ADD_SUM: Final = "INSERT INTO sums VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_ADD_CLIENT: Final = "INSERT INTO clients VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_ADD_CELL: Final = "INSERT INTO cells VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_LOG: Final = "SELECT retention, salt FROM log"
_KNOWN_EVENTS: Final = "SELECT event FROM totals WHERE step = ? AND start = ?"
_DROPPED: Final = "SELECT error, sketch, missed FROM dropped WHERE step = ? AND event = ? AND start = ?"
_CLIENT_COUNT: Final = "SELECT count(*) FROM clients WHERE step = ? AND event = ? AND start = ?"
_CLIENTS_OF_BUCKET: Final = "SELECT client, n FROM clients WHERE step = ? AND event = ? AND start = ?"
_DROP_CLIENTS: Final = (
    "DELETE FROM clients WHERE step = :step AND event = :event AND start = :start AND n <= :loss",
    "UPDATE clients SET n = n - :loss WHERE step = :step AND event = :event AND start = :start",
)
_EXPIRE: Final = (
    """
    DELETE FROM clients WHERE step = :step AND start <= :last
    AND event IN (SELECT event FROM totals WHERE step = :step AND start <= :last)
    """,
    """
    DELETE FROM dropped WHERE step = :step AND start <= :last
    AND event IN (SELECT event FROM totals WHERE step = :step AND start <= :last)
    """,
    "DELETE FROM totals WHERE step = :step AND start <= :last",
    "DELETE FROM cells WHERE step = :step AND start <= :last",
    "DELETE FROM sums WHERE step = :step AND start <= :last - 11 * :step",  # the last bucket of a block
)
_CURVE: Final = """
    SELECT start, n FROM totals WHERE step = :step AND event = :event AND start >= :start AND start < :end
"""
# One lookup for each bucket: other clients and other cells are not read.
_CLIENT_CURVE: Final = """
    WITH RECURSIVE run(start) AS (SELECT :start UNION ALL SELECT start + :step FROM run WHERE start + :step < :end)
    SELECT start, n FROM run CROSS JOIN clients USING (start)
    WHERE step = :step AND event = :event AND client = :client
"""
_LEAST_CELLS: Final = """
    WITH RECURSIVE run(start) AS (SELECT :start UNION ALL SELECT start + :step FROM run WHERE start + :step < :end)
    SELECT start, min(n) FROM run CROSS JOIN cells USING (start)
    WHERE step = :step AND cell IN (:cell0, :cell1, :cell2, :cell3, :cell4) GROUP BY start HAVING count(*) = 5
"""
_CLIENTS: Final = """
    SELECT client, sum(n) FROM clients WHERE step = :step AND event = :event AND start >= :start AND start < :end
    GROUP BY client
"""
_ERRORS: Final = """
    SELECT start, error FROM dropped WHERE step = :step AND event = :event AND start >= :start AND start < :end
"""
_SKETCHES: Final = """
    SELECT error, sketch, missed FROM dropped WHERE step = :step AND event = :event AND start >= :start AND start < :end
"""
# SQLite sorts the rows that it reads, so it reads whole blocks where it can. The index has no rows of other times.
_EVENTS: Final = """
    SELECT event, sum(n) FROM (
    SELECT event, n FROM totals INDEXED BY by_start WHERE step = :step AND start >= :start AND start < :first
    UNION ALL SELECT event, n FROM sums WHERE step = :step AND start >= :first AND start < :last
    UNION ALL
    SELECT event, n FROM totals INDEXED BY by_start WHERE step = :step AND start >= :last AND start < :end
    ) GROUP BY event
"""
# The plus makes SQLite look up each bucket, instead of all buckets of the range for each.
_BESIDE_OTHER: Final = """
    SELECT totals.event, sum(other.n) FROM totals AS other
    CROSS JOIN totals INDEXED BY by_start ON totals.step = :step AND totals.start = +other.start
    WHERE other.step = :step AND other.event = :other AND other.start >= :start AND other.start < :end
    GROUP BY totals.event
"""
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteCounts(CountStore):
    """Keeps counts in a file, which the processes of one machine share."""

    def __init__(self, path: str, retention: Retention) -> None:
        self.path = path
        self._retention = retention
        if not Path(path).parent.is_dir():
            raise ConfigError(f"the folder of the traffic log {path} does not exist. Create it, or correct the path")

    def write(self, batch: Batch, token: str, now: int) -> str | None:
        with self._writing() as db:
            retention, salt = db.execute(_LOG).fetchone()
            if retention != str(self._retention):
                return str(retention)
            for bucket, events in batch.items():
                self._add(db, salt, *bucket, events)
            self._drop_expired(db, now)
        return None

    def expire(self, now: int) -> int:
        with self._errors():
            before = Path(self.path).stat().st_size
            with self._writing() as db:
                self._drop_expired(db, now)
            with self._connection() as db:
                db.execute("VACUUM")
            return max(0, before - Path(self.path).stat().st_size)

    def _drop_expired(self, db: sqlite3.Connection, now: int) -> None:
        for step, kept in self._retention.resolutions:
            for statement in _EXPIRE:
                db.execute(statement, {"step": step, "last": now - kept - 2 * step})

    def totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        return self._read_events(_CURVE, run, {event: {"event": event} for event in events})

    def least_cells(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        _, salt = self._log() or ("", "")
        cells = {event: {f"cell{i}": cell for i, cell in enumerate(cells_of(event, salt))} for event in events}
        return self._read_events(_LEAST_CELLS, run, cells)

    def tables(self, run: Run, event: str, clients: Sequence[str]) -> dict[int, EventCounts]:
        values = {**run._asdict(), "event": event}
        calls = [(_CLIENT_CURVE, {**values, "client": client}) for client in clients]
        errors, *rows_of_clients = self._read([(_ERRORS, values), *calls])
        found = {start: EventCounts(error=error) for start, error in errors}
        for client, rows in zip(clients, rows_of_clients, strict=True):
            for start, number in rows:
                found.setdefault(start, EventCounts()).clients[client] = number
        return found

    def clients(self, runs: Sequence[Run], event: str) -> EventCounts:
        _, salt = self._log() or ("", "")
        found = EventCounts()
        values = [{**run._asdict(), "event": event} for run in runs]
        for rows in self._read((_CLIENTS, each) for each in values):
            add_counts(found.clients, dict(rows))
        for rows in self._read((_SKETCHES, each) for each in values):
            for error, sketch, missed in rows:
                found.merge(EventCounts(error=error, sketch=HyperLogLog(sketch), missed=missed), salt)
        return found

    def events(self, runs: Sequence[Run]) -> dict[str, Estimate]:
        totals, beside = Counter[str](), Counter[str]()
        sums = [(_EVENTS, _with_blocks(run)) for run in runs]
        others = [(_BESIDE_OTHER, {**run._asdict(), "other": OTHER}) for run in runs]
        for i, rows in enumerate(self._read(sums + others)):
            (totals if i < len(runs) else beside).update(dict(rows))
        return with_errors(totals, beside)

    def retention(self) -> str | None:
        found = self._log()
        return None if found is None else found[0]

    def _log(self) -> tuple[str, str] | None:
        """Return the retention and the salt of the log; None when there is no log yet."""
        (rows,) = self._read([(_LOG, {})])
        return rows[0] if rows else None

    def _read_events(
        self, statement: str, run: Run, events: Mapping[str, Mapping[str, object]]
    ) -> dict[str, dict[int, int]]:
        """Return the rows of each event, by its values for a statement."""
        rows = self._read((statement, {**run._asdict(), **values}) for values in events.values())
        return {event: dict(each) for event, each in zip(events, rows, strict=True)}

    def _read(self, calls: Iterable[tuple[str, Mapping[str, object]]]) -> list[list[Any]]:
        """Return the rows of statements, each with its values, in one state of the file: none when there is no log."""
        with self._reading() as db:
            return [db.execute(*call).fetchall() if db else [] for call in calls]

    def _add(self, db: sqlite3.Connection, salt: str, step: int, start: int, events: Events) -> None:
        known = {event for (event,) in db.execute(_KNOWN_EVENTS, (step, start))}
        folded, block = fold_events(events, known, salt), start - start % (BLOCK * step)
        db.executemany(_ADD_TOTAL, ((step, event, start, counts.total) for event, counts in folded.items()))
        db.executemany(_ADD_SUM, ((step, block, event, counts.total) for event, counts in folded.items()))
        for event, counts in folded.items():
            if counts.cells:
                db.executemany(_ADD_CELL, ((step, start, *cell) for cell in counts.cells.items()))
            if counts.clients or counts.sketch or counts.error:
                _add_clients(db, salt, (step, event, start), counts)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which ends with the block. An error undoes it."""
        with self._errors(), suppress(FileExistsError):  # the names of clients are for the owner of the file alone
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with self._connection() as db:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("BEGIN IMMEDIATE")
            if not self._has_log(db):
                for statement in SCHEMA:
                    db.execute(statement, {"retention": str(self._retention), "salt": create_salt()})
            yield db
            db.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection that reads one state of the file; None when there is no log yet."""
        if not Path(self.path).exists():
            yield None
            return
        with self._connection() as db:
            db.execute("BEGIN")
            yield db if self._has_log(db) else None

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
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _is_damage(error):
                raise StoreError(f"{self.path} is damaged ({error}). To start a new log, move the file away") from error
            raise StoreError(f"the traffic log {self.path} failed: {error}") from error
        except OSError as error:
            raise StoreError(f"cannot create the traffic log {self.path}: {error.strerror}") from error

    def _has_log(self, db: sqlite3.Connection) -> bool:
        """Return whether the file has a log, and not that of another program or version. An empty file has none."""
        if (application := db.execute("PRAGMA application_id").fetchone()[0]) == APPLICATION:
            if (version := db.execute("PRAGMA user_version").fetchone()[0]) != VERSION:
                text = f"{self.path} has version {version} of the traffic log, and this ratelimit_mw needs {VERSION}"
                raise StoreError(f"{text}. To start a new log, move the file away, or name another file")
            return True
        if application or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{self.path} is a database of another program. Name another file for the traffic log")
        return False


def _is_damage(error: Exception) -> bool:
    """Return whether an error is one of the file. A text that is not UTF-8 has no code of its own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE or "decode" in str(error)


def _with_blocks(run: Run) -> dict[str, int]:
    """Return the values of a run, with the whole blocks in its middle: from ``first`` up to ``last``."""
    block = BLOCK * run.step
    first, last = -(-run.start // block) * block, run.end // block * block
    if first >= last:
        first = last = run.end
    return {**run._asdict(), "first": first, "last": last}


def _add_clients(db: sqlite3.Connection, salt: str, place: tuple[int, str, int], counts: EventCounts) -> None:
    """Add the clients of an event in a bucket. If there are too many, the smallest are dropped."""
    counts.drop_clients(salt)
    db.executemany(_ADD_CLIENT, ((*place, *each) for each in counts.clients.items()))
    found = db.execute(_DROPPED, place).fetchone()
    (size,) = db.execute(_CLIENT_COUNT, place).fetchone()
    if found is None and counts.sketch is None and not counts.error and size <= 2 * MOST:
        return
    own = EventCounts()
    if found is None or size > 2 * MOST:
        own.clients = dict(db.execute(_CLIENTS_OF_BUCKET, place))
    if found is not None:
        own.error, own.sketch, own.missed = found[0], HyperLogLog(found[1]), found[2]
    own.error += counts.error
    own.missed += counts.missed
    own.sketch = own.sketch_with(counts, salt)
    if loss := own.drop_clients(salt):
        for statement in _DROP_CLIENTS:
            db.execute(statement, {**dict(zip(("step", "event", "start"), place, strict=True)), "loss": loss})
    db.execute("REPLACE INTO dropped VALUES (?, ?, ?, ?, ?, ?)", (*place, own.error, bytes(own.sketch), own.missed))


def open_address(address: LogAddress) -> SqliteCounts:
    return SqliteCounts(str(address.place), address.retention)
