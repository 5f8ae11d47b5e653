"""Expiry without threads or timers: whole tables are dropped. No I/O; the time is an argument.

States are grouped by their lifetime, the span. Each group has a young and an old table. After each span the old table
is dropped and the young table becomes the old one. A write moves a state to the young table, so every state in a
dropped table has not changed for a whole span and has expired. (A dictionary of a million keys that are deleted one by
one keeps a quarter of its memory.)
"""

from __future__ import annotations

from copy import copy
from typing import Any

Table = dict[str, Any]


class Generations:
    """The states that expire ``span`` microseconds after their last change."""

    __slots__ = ("old", "overdue", "rotates_at", "shared", "shared_old", "span", "young")

    def __init__(self, span: int, now: int) -> None:
        self.span = span
        self.rotates_at = now + span
        self.young: Table = {}
        self.old: Table = {}
        self.shared: Table = {}  # The states that new keys share when the store is full.
        self.shared_old: Table = {}
        # Keys charged beyond their limit are kept longer than a span, until this time.
        self.overdue: dict[str, int] = {}

    def rotate(self, now: int) -> list[Table]:
        """Start a new young table. Return the tables that were dropped."""
        self.overdue = {key: until for key, until in self.overdue.items() if until > now}
        dropped = []
        for _ in range(2 if now >= self.rotates_at + self.span else 1):
            for old, young in (self.old, self.young), (self.shared_old, self.shared):
                young.update({key: old.pop(key) for key in self.overdue if key in old})
            dropped.append(self.old)
            self.old, self.young = self.young, {}
            self.shared_old, self.shared = self.shared, {}
        self.rotates_at = now + self.span
        return [table for table in dropped if table]

    def copy(self) -> Generations:
        twin = copy(self)
        for name in ("young", "old", "shared", "shared_old", "overdue"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def move_prefix(self, prefix: str, other: Generations) -> None:
        """Move all keys that start with ``prefix``, because they must be kept longer from now on."""
        tables = (self.old, other.young), (self.young, other.young), (self.shared_old, other.shared)
        for source, target in (*tables, (self.shared, other.shared), (self.overdue, other.overdue)):
            for key in [key for key in source if key.startswith(prefix)]:
                target[key] = source.pop(key)
