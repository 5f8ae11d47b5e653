"""``Batch``: counts by bucket, event and client, and their bound. Pure, no I/O.

A bucket has at most a number of events, and an event in it at most a number of clients. Further ones count together
as ``OTHER``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from .retention import Resolution

OTHER: Final = "__other__"
"""The event or the client of further counts, when there are too many."""
MOST: Final = 1_000
"""The most events of a bucket, and the most clients of an event in it, besides ``OTHER``."""


class EventCounts(msgspec.Struct, array_like=True, eq=False):
    """The counts of one event in one bucket. ``clients`` has those of records with a client."""

    total: int = 0
    clients: dict[str, int] = {}

    def add(self, number: int, client: str | None) -> None:
        """Count a number of times."""
        self.total += number
        if client is not None:
            self.clients[client] = self.clients.get(client, 0) + number

    def merge(self, other: EventCounts, left_out: Collection[str] = ()) -> None:
        """Add other counts. The clients ``left_out`` count together."""
        self.total += other.total
        for client, number in other.clients.items():
            name = OTHER if client in left_out else client
            self.clients[name] = self.clients.get(name, 0) + number


Bucket = tuple[int, int]
"""The step and the start of a bucket, in seconds."""
Events = dict[str, EventCounts]
Batch = dict[Bucket, Events]
Records = Mapping[int, Mapping[tuple[str, str | None], int]]
"""Counts by the start of a finest bucket, then by event and client."""


def batch_of(records: Records, resolutions: Collection[Resolution], now: int) -> Batch:
    """Return the buckets of all resolutions that records belong to, without those that are no longer kept."""
    batch: Batch = {}
    for time, counts in records.items():
        for step, kept in resolutions:
            if (start := time // step * step) + step > now - kept:
                events = batch.setdefault((step, start), {})
                for (event, client), number in counts.items():
                    if event not in events:
                        events[event] = EventCounts()
                    events[event].add(number, client)
    return batch


def fold_events(events: Events, known: Collection[str]) -> Events:
    """Return events for a bucket that has the events ``known``: those without room count together."""
    left_out = without_room({event: counts.total for event, counts in events.items()}, known)
    if not left_out:
        return events
    folded: Events = {}
    for event, counts in events.items():
        folded.setdefault(OTHER if event in left_out else event, EventCounts()).merge(counts)
    return folded


def without_room(counts: Mapping[str, int], known: Collection[str]) -> Collection[str]:
    """Return the names that have no room beside the names ``known``. The largest of the new ones get the room."""
    if len(known) + len(counts) <= MOST:
        return ()
    new = [name for name in counts if name not in known and name != OTHER]
    new.sort(key=lambda name: (-counts[name], name))
    return set(new[max(0, MOST - len(known) + (OTHER in known)) :])
