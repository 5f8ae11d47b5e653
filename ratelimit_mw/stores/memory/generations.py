"""Expiry without threads or timers: whole tables are dropped. No I/O; the time is an argument.

States are grouped by their lifetime, the span. Each group has a young and an old table. After each span the old table
is dropped and the young table becomes the old one. A write moves a state to the young table, so every state in a
dropped table has not changed for a whole span and has expired. (A dictionary of a million keys that are deleted one by
one keeps a quarter of its memory.)
"""

from __future__ import annotations

from typing import Any

Table = dict[str, Any]


class Generations:
    """The states that expire ``span`` microseconds after their last change.

    ``shared`` and ``shared_old`` hold the states that new keys share when the store is full.
    """

    __slots__ = ("old", "overdue", "rotates_at", "shared", "shared_old", "span", "young")

    def __init__(self, span: int, now: int) -> None:
        self.span = span
        self.rotates_at = now + span
        self.young: Table = {}
        self.old: Table = {}
        self.shared: Table = {}
        self.shared_old: Table = {}
        # Keys charged beyond their limit are kept longer than a span, until this time.
        self.overdue: dict[str, int] = {}

    def rotate(self, now: int) -> list[Table]:
        """Start a new young table. Return the tables that were dropped."""
        dropped, shared_dropped = [self.old], [self.shared_old]
        self.old, self.young = self.young, {}
        self.shared_old, self.shared = self.shared, {}
        if now >= self.rotates_at + self.span:
            dropped.append(self.old)
            shared_dropped.append(self.shared_old)
            self.old, self.shared_old = {}, {}
        self.rotates_at = now + self.span
        self.overdue = {key: until for key, until in self.overdue.items() if until > now}
        self._keep_overdue(dropped, self.young)
        self._keep_overdue(shared_dropped, self.shared)
        return [table for table in dropped if table]

    def copy(self) -> Generations:
        """Return a copy with its own tables."""
        twin = Generations(self.span, self.rotates_at - self.span)
        twin.young, twin.old = dict(self.young), dict(self.old)
        twin.shared, twin.shared_old = dict(self.shared), dict(self.shared_old)
        twin.overdue = dict(self.overdue)
        return twin

    def move_prefix(self, prefix: str, other: Generations) -> None:
        """Move all keys that start with ``prefix``, because they must be kept longer from now on."""
        for table in (self.old, self.young):
            _move(prefix, table, other.young)
        for table in (self.shared_old, self.shared):
            _move(prefix, table, other.shared)
        _move(prefix, self.overdue, other.overdue)

    def _keep_overdue(self, dropped: list[Table], young: Table) -> None:
        for key in self.overdue:
            for table in dropped:
                if key in table:
                    young[key] = table.pop(key)


def _move(prefix: str, source: dict[str, Any], target: dict[str, Any]) -> None:
    for key in [key for key in source if key.startswith(prefix)]:
        target[key] = source.pop(key)
