"""``RequestLog``: the requests of access logs in a temporary database, by time."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Final
from weakref import finalize

import msgspec

from ...keys.features import INVALID
from ..access_log import LogEntry
from ..log_formats import LineParser
from ..logs import COLUMNS, AccessLogs
from ..output import progress

_CACHE: Final = 50_000
"""The memory of the database in KiB. The rest of it is on disk."""
AT_ONCE: Final = 1_000
"""The requests of one write, and between two updates of a bar."""


class RequestLog:
    """The requests of access logs in a temporary database, which SQLite deletes. The logs are read once.

    The database has about the size of the logs, most of it on disk.
    """

    def __init__(self, paths: Sequence[str], parser: LineParser) -> None:
        self.logs = AccessLogs(paths, parser)
        self.db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        finalize(self, self.db.close)
        for pragma in ("journal_mode = OFF", f"cache_size = -{_CACHE}", "temp_store = FILE"):
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("CREATE TABLE request (number INTEGER PRIMARY KEY, file, time, data)")
        self.db.execute("BEGIN")
        self._starts: dict[int, float] = {}
        self._is_sorted = True
        self.insert("INSERT INTO request (file, time, data) VALUES (?, ?, ?)", self._rows())
        found = self.db.execute("SELECT count(*), min(time), max(time) FROM request").fetchone()
        self.count, self.first, self.last = found
        self.logs.finish(self.count)

    def insert(self, statement: str, rows: Iterator[tuple[Any, ...]]) -> None:
        """Insert rows, some of them at once: their iterator may use the database, too."""
        while some := list(islice(rows, AT_ONCE)):
            self.db.executemany(statement, some)

    def _rows(self) -> Iterator[tuple[int, float, bytes]]:
        before, encode = 0.0, msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode  # an invalid feature is null
        for file, entry in self.logs.read():
            time = entry.time
            self._is_sorted = self._is_sorted and before <= time
            before = time
            if time < self._starts.get(file, inf):
                self._starts[file] = time
            yield file, time, encode(entry)

    def requests(self, action: str) -> Iterator[tuple[int, LogEntry]]:
        """Yield the requests by time, each with its number. ``action`` is the text of the bar.

        At one time, a file that starts earlier comes first, so the order of the files changes nothing.
        """
        by_start = sorted(self._starts, key=lambda file: (self._starts[file], self.logs.paths[file]))
        self.db.create_function("place", 1, by_start.index, deterministic=True)
        order = "number" if self._is_sorted else "time, place(file), number" if by_start[1:] else "time, number"
        rows = self.db.execute(f"SELECT number, data FROM request ORDER BY {order}")  # noqa: S608
        decode = msgspec.msgpack.Decoder(LogEntry).decode
        with progress(action, self.count, *COLUMNS, lines=0, of="requests") as update:
            for done, (number, data) in enumerate(rows):
                if done % AT_ONCE == 0:
                    update(lines=done, completed=done)
                entry = decode(data)
                yield number, entry if not entry.features else entry._replace(features=_valid(entry.features))


def _valid(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features that were encoded. One that is missing is left out, so null is an invalid one."""
    return {name: INVALID if value is None else value for name, value in features.items()}
