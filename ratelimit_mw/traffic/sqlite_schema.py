"""The schema of a traffic log in SQLite, and its versions."""

from __future__ import annotations

from typing import Final

APPLICATION: Final = 0x524C_5431
"""Marks the file of a traffic log, for this package and for the program ``file``."""
BLOCK: Final = 12
"""The buckets of a row of ``sums``, as in the last version of the schema."""
FILL_SUMS: Final = """
INSERT INTO sums SELECT step, start - start % (12 * step), event, sum(n) FROM totals GROUP BY 1, 2, 3
"""
"""Fills ``sums`` from ``totals``. 12 is ``BLOCK``."""
# Each tuple brings a file to its next version. The rows of one event are together, so that a curve reads few pages.
# The index has those of one bucket together.
SCHEMA: Final = (
    (
        f"PRAGMA application_id = {APPLICATION}",
        "CREATE TABLE log (retention TEXT NOT NULL)",
        "INSERT INTO log VALUES (:retention)",
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
    ),
    (
        "PRAGMA user_version = 2",
        "ALTER TABLE log ADD COLUMN salt TEXT",
        "UPDATE log SET salt = :salt",
        """
        CREATE TABLE dropped (
            step INTEGER, event TEXT, start INTEGER, error INTEGER NOT NULL, sketch BLOB NOT NULL,
            PRIMARY KEY (step, event, start)
        )
        """,
        """
        CREATE TABLE cells (
            step INTEGER, start INTEGER, cell INTEGER, n INTEGER NOT NULL, PRIMARY KEY (step, start, cell)
        ) WITHOUT ROWID
        """,
    ),
    (
        "PRAGMA user_version = 3",
        "ALTER TABLE dropped ADD COLUMN missed INTEGER NOT NULL DEFAULT 0",
    ),
    (
        "PRAGMA user_version = 4",
        """
        CREATE TABLE sums (
            step INTEGER, start INTEGER, event TEXT, n INTEGER NOT NULL, PRIMARY KEY (step, start, event)
        ) WITHOUT ROWID
        """,
        FILL_SUMS,
    ),
)
