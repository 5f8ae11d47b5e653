"""The schema of a traffic log in SQLite."""

from __future__ import annotations

from typing import Final

APPLICATION: Final = 0x524C_5431
"""Marks the file of a traffic log, for this package and for the program ``file``."""
VERSION: Final = 1
BLOCK: Final = 12
"""The buckets of a row of ``sums``."""
# The rows of one event are together, so that a curve reads few pages. The index has those of one bucket together.
SCHEMA: Final = (
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
    "CREATE TABLE log (retention TEXT NOT NULL, salt TEXT NOT NULL)",
    "INSERT INTO log VALUES (:retention, :salt)",
    """
    CREATE TABLE totals (
        step INTEGER, event TEXT, start INTEGER, n INTEGER NOT NULL, PRIMARY KEY (step, event, start)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX by_start ON totals (step, start, event, n)",
    """
    CREATE TABLE sums (
        step INTEGER, start INTEGER, event TEXT, n INTEGER NOT NULL, PRIMARY KEY (step, start, event)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE clients (
        step INTEGER, event TEXT, start INTEGER, client TEXT, n INTEGER NOT NULL,
        PRIMARY KEY (step, event, start, client)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE dropped (
        step INTEGER, event TEXT, start INTEGER, error INTEGER NOT NULL, sketch BLOB NOT NULL,
        missed INTEGER NOT NULL, PRIMARY KEY (step, event, start)
    )
    """,
    """
    CREATE TABLE cells (
        step INTEGER, start INTEGER, cell INTEGER, n INTEGER NOT NULL, PRIMARY KEY (step, start, cell)
    ) WITHOUT ROWID
    """,
)
