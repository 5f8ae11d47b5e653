"""Expiry without threads or timers: whole tables are dropped. No I/O; the time is an argument.

The states of one prefix are in a young and an old table. After each span, the longest lifetime of their limits, the old
table is dropped and the young table becomes the old one. A write moves a state to the young table, so every state in a
dropped table has not changed for a whole span and has expired. (A dictionary of a million keys that are deleted one by
one keeps a quarter of its memory.)
"""

from __future__ import annotations

from copy import copy
from typing import Any

Table = dict[str, Any]


class Generations:
    """The states whose keys have one prefix."""

    __slots__ = ("limit", "old", "overdue", "rotates_at", "shared", "shared_old", "span", "young")

    def __init__(self) -> None:
        self.limit: Any = None  # the last one with this prefix, None until there is one
        self.span = 0
        self.rotates_at = 0
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
                # A shared state that was written again is in both.
                young.update({key: old.pop(key) for key in self.overdue if key in old and key not in young})
            dropped.append(self.old)
            self.old, self.young = self.young, {}
            self.shared_old, self.shared = self.shared, {}
        self.rotates_at = now + self.span
        return [table for table in dropped if table]

    def copy(self) -> Generations:
        """Return a copy with all states in the old tables."""
        twin = copy(self)
        twin.old, twin.shared_old, twin.overdue = self.old | self.young, self.shared_old | self.shared, {**self.overdue}
        return twin
