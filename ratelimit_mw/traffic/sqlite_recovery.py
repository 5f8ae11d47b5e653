"""``recover``: copies what can be read of a damaged traffic log in SQLite into a new log.

SQLite can find a row by its key without reading the pages of other rows. So if a table cannot be read as a whole, its
rows are looked up by step, event and start. The new log provides these values, because the totals are copied first. The
file contains the totals twice: in their table and in its index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, StoreError
from .digest import create_salt
from .hyperloglog import is_sketch
from .retention import Retention
from .sqlite import SqliteCounts
from .sqlite_schema import FILL_SUMS


class Recovered(NamedTuple):
    """The rows of a table that were copied, and whether all of it could be read."""

    table: str
    rows: int
    is_complete: bool


class _Source(NamedTuple):
    """A table, or its index, and the columns by which its rows can be looked up."""

    table: str
    rows: str
    keys: tuple[str, ...]
    order: str = ""


# Without its order, SQLite would read the index.
_TOTALS: Final = _Source("totals", "totals", ("step", "event"), "ORDER BY step, event, start")
_SOURCES: Final = (
    _TOTALS,
    _Source("totals", "totals INDEXED BY by_start", ("step", "start")),
    _TOTALS,  # again, with the events that only the index had
    _Source("clients", "clients", ("step", "event", "start")),
    _Source("dropped", "dropped", ("step", "event", "start")),
    _Source("cells", "cells", ("step", "start")),
)
_SALTED: Final = ("dropped", "cells")
"""The tables that mean nothing without the salt of the log."""
_REBUILD_SUMS: Final = ("DELETE FROM sums", FILL_SUMS)


def recover(damaged: SqliteCounts, new: SqliteCounts, retention: Retention | None) -> list[Recovered]:
    """Copy what can be read of a damaged log into a new one.

    Args:
        damaged: The damaged log. Its file stays as it is.
        new: The new log. Its file must not exist, or be empty.
        retention: The retention of the damaged log, if its own cannot be read.

    Returns:
        The rows of each table.

    Raises:
        ConfigError: The new log exists, or the retention cannot be read and is not given.
        StoreError: Nothing can be read, or a file cannot be opened.
    """
    if new.retention() is not None:
        raise ConfigError(f"{new.path} already contains a traffic log. Name a file that does not exist")
    with damaged.connection() as old:
        old.execute("PRAGMA writable_schema = ON")  # SQLite then reads a file that was cut off, too
        old.execute("BEGIN")  # one state of the file, if an application still writes
        kept, salt = _log_of(old, damaged.path, retention)
        with SqliteCounts(new.path, kept).writing() as db:
            found = _Copy(old, db, kept, salt).run()
            if not any(each.rows for each in found) and not all(each.is_complete for each in found):
                raise _nothing(damaged.path)
    return found


def _log_of(old: sqlite3.Connection, path: str, retention: Retention | None) -> tuple[Retention, str | None]:
    """Return the retention and the salt of a log. A damaged salt is None. A log of version 1 gets a new salt."""
    try:
        tables = {name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError:  # no damage: for example, it is locked
        raise
    except sqlite3.DatabaseError as error:
        raise _nothing(path) from error
    if "log" not in tables:
        raise StoreError(f"{path} is not a traffic log")
    with suppress(sqlite3.DatabaseError, ConfigError):
        kept, *salts = old.execute("SELECT * FROM log").fetchone() or ("",)
        return Retention(kept), salts[0] if salts else create_salt()
    if retention is None:
        raise ConfigError(f"the retention of {path} cannot be read. Add it to the URL, such as ?retention=1m:1d,1h:90d")
    return retention, None


def _nothing(path: str) -> StoreError:
    return StoreError(f"nothing can be read from {path}. Restore a backup, or move the file away to start a new log")


class _Copy:
    """Copies the tables of a damaged log."""

    def __init__(
        self, old: sqlite3.Connection, new: sqlite3.Connection, retention: Retention, salt: str | None
    ) -> None:
        self._old, self._new, self._salt = old, new, salt
        self._steps = {each.step for each in retention.resolutions}
        self._damaged = set[_Source]()

    def run(self) -> list[Recovered]:
        """Copy all tables, and return what was read of each."""
        counts = dict.fromkeys((source.table for source in _SOURCES), 0)
        for source in _SOURCES:
            if self._salt is not None or source.table not in _SALTED:
                counts[source.table] += self._copy(source)
            else:
                self._damaged.add(source)
        for statement in _REBUILD_SUMS:
            self._new.execute(statement)
        if self._salt is not None:
            self._new.execute("UPDATE log SET salt = ?", (self._salt,))
        return [Recovered(table, rows, self._is_complete(table)) for table, rows in counts.items()]

    def _is_complete(self, table: str) -> bool:
        return any(source not in self._damaged for source in _SOURCES if source.table == table)

    def _copy(self, source: _Source) -> int:
        """Copy the rows of a source, and return how many of them are new."""
        columns = [column for _, column, *_ in self._new.execute(f"PRAGMA table_info({source.table})")]
        if not self._old.execute(f"PRAGMA table_info({source.table})").fetchall():
            return 0  # an earlier version
        rows = ((*row, 0)[: len(columns)] for row in self._rows(source))  # an earlier version has no "missed"
        valid = (row for row in rows if self._is_valid(source, dict(zip(columns, row, strict=True))))
        marks = ", ".join("?" * len(columns))
        return self._new.executemany(
            " ".join(("INSERT OR IGNORE INTO", source.table, f"VALUES ({marks})")), valid
        ).rowcount

    def _rows(self, source: _Source, *key: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows whose columns begin with a key. Where they cannot be read, look up longer keys."""
        try:
            yield from self._old.execute(_select("*", source.rows, source.keys[: len(key)], source.order), key)
        except sqlite3.DatabaseError:
            self._damaged.add(source)
        else:
            return
        if len(key) < len(source.keys):
            for each in self._known(source.keys[: len(key) + 1], key):
                yield from self._rows(source, *key, each)

    def _known(self, columns: tuple[str, ...], key: tuple[object, ...]) -> Sequence[object]:
        """Return the values of the last column beside a key, in the totals of the new log."""
        if columns == ("step",):
            return sorted(self._steps)
        *keys, column = columns
        return [value for (value,) in self._new.execute(_select(f"DISTINCT {column}", "totals", keys), key)]

    def _is_valid(self, source: _Source, row: dict[str, Any]) -> bool:
        """Return whether a row is possible in a log. SQLite does not notice all damage."""
        is_valid = row["step"] in self._steps and all(_CHECKS[column](value) for column, value in row.items())
        is_valid = is_valid and row["start"] % row["step"] == 0
        if not is_valid:
            self._damaged.add(source)
        return is_valid


def _select(columns: str, rows: str, keys: Sequence[str], order: str = "") -> str:
    """Return the statement that reads rows with a value for each key."""
    condition = " AND ".join(f"{key} = ?" for key in keys) or "true"
    return " ".join(("SELECT", columns, "FROM", rows, "WHERE", condition, order))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value  # zeros are what SQLite reads after the end of a file


_CHECKS: Final[dict[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("step", "cell", "error", "missed"), _is_number),
    **dict.fromkeys(("start", "n"), _is_count),
    **dict.fromkeys(("event", "client"), _is_text),
    "sketch": is_sketch,
}
