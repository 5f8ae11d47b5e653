"""Expiry without threads or timers: tables that are dropped whole. Pure; the time is an argument.

States live on shelves by how long they can matter. A shelf has a young and an old table; when its span has passed,
the old table is dropped, the young one becomes old. What is written moves to the young table, so whatever is in a
dropped table has not changed for a whole span and is as good as fresh. (A dictionary of a million keys that are
deleted one by one keeps a quarter of its memory.)
"""

from __future__ import annotations

from typing import Any

__all__ = ["Generations", "Table"]

Table = dict[str, Any]


class Generations:
    """The states that are as good as fresh ``span`` microseconds after their last change."""

    __slots__ = ("debts", "old", "shared", "shared_old", "span", "turns_at", "young")

    def __init__(self, span: int, now: int) -> None:
        self.span = span
        self.turns_at = now + span
        self.young: Table = {}
        self.old: Table = {}
        self.shared: Table = {}
        self.shared_old: Table = {}
        # Keys, own and shared, charged beyond their limit stay longer than a span: until when.
        self.debts: dict[str, int] = {}

    def turn(self, now: int) -> list[Table]:
        """Drop what has not changed for a span; the dropped tables."""
        dropped, forgotten = [self.old], [self.shared_old]
        self.old, self.young = self.young, {}
        self.shared_old, self.shared = self.shared, {}
        if now >= self.turns_at + self.span:
            dropped.append(self.old)
            forgotten.append(self.shared_old)
            self.old, self.shared_old = {}, {}
        self.turns_at = now + self.span
        self.debts = {key: until for key, until in self.debts.items() if until > now}
        self._keep_debts(dropped, self.young)
        self._keep_debts(forgotten, self.shared)
        return [table for table in dropped if table]

    def copy(self) -> Generations:
        """The same states on a shelf of its own."""
        twin = Generations(self.span, self.turns_at - self.span)
        twin.young, twin.old = dict(self.young), dict(self.old)
        twin.shared, twin.shared_old = dict(self.shared), dict(self.shared_old)
        twin.debts = dict(self.debts)
        return twin

    def move_prefix(self, prefix: str, other: Generations) -> None:
        """Move what starts with ``prefix``: the same keys are needed for longer from now on."""
        for mine in (self.old, self.young):
            _move(prefix, mine, other.young)
        for mine in (self.shared_old, self.shared):
            _move(prefix, mine, other.shared)
        _move(prefix, self.debts, other.debts)

    def _keep_debts(self, dropped: list[Table], young: Table) -> None:
        for key in self.debts:
            for table in dropped:
                if key in table:
                    young[key] = table.pop(key)


def _move(prefix: str, mine: dict[str, Any], its: dict[str, Any]) -> None:
    for key in [key for key in mine if key.startswith(prefix)]:
        its[key] = mine.pop(key)
