"""``Batch``: counts by bucket, event and client, and their bound. Pure, no I/O.

A bucket has at most ``MOST`` events. Further events count together as ``OTHER``, and in a count-min sketch.

The clients of an event are a Misra-Gries summary (Agarwal and others, "Mergeable Summaries", 2012). When there are too
many, the count of the client at rank ``MOST`` + 1 is subtracted from all, and clients without a count are dropped. So
each count is too low by at most the sum of these losses, which is less than the counts of all clients / ``MOST``.
A sketch contains all clients that were ever counted, except those for which a process had no room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from heapq import nsmallest
from typing import Final, TypeVar

import msgspec

from .count_min import cells_of
from .estimate import Estimate
from .hyperloglog import HyperLogLog
from .losses import Losses
from .retention import Resolution

_Name = TypeVar("_Name", int, str)
OTHER: Final = "__other__"
"""The event that counts all events without room."""
MOST: Final = 1_000
"""The maximum number of events in a bucket, and of clients that an event keeps once it has more than twice as many."""


class EventCounts(msgspec.Struct, array_like=True, eq=False):
    """The counts of one event in one bucket.

    Args:
        total: All counts.
        clients: The counts of records with a client.
        error: The most by which the count of a client is too low.
        sketch: All clients; None while no client was dropped.
        cells: The count-min sketch of the events of ``OTHER``.
        missed: The most clients that neither ``clients`` nor the sketch has: a process had no room for them.
    """

    total: int = 0
    clients: dict[str, int] = {}
    error: int = 0
    sketch: HyperLogLog | None = None
    cells: dict[int, int] = {}
    missed: int = 0

    def add(self, number: int, client: str | None) -> None:
        """Add a number to the total and to the count of the client."""
        self.total += number
        if client is not None:
            self.clients[client] = self.clients.get(client, 0) + number

    def merge(self, other: EventCounts, salt: str) -> None:
        """Add other counts. ``salt`` is the salt of the log."""
        self.total += other.total
        self.error += other.error
        self.missed += other.missed
        if other.clients:
            add_counts(self.clients, other.clients)
        if other.cells:
            add_counts(self.cells, other.cells)
        if self.sketch or other.sketch:
            self.sketch = self.sketch_with(other, salt)

    def count_of(self, client: str) -> Estimate:
        """Return the count of a client."""
        return Estimate(self.clients.get(client, 0), self.error)

    def top(self, most: int) -> list[tuple[str, Estimate]]:
        """Return the clients with the highest counts."""
        found = nsmallest(most, self.clients.items(), key=lambda each: (-each[1], each[0]))
        return [(client, Estimate(number, self.error)) for client, number in found]

    def distinct(self) -> Estimate:
        """Return the number of clients."""
        known = Estimate(len(self.clients)) if self.sketch is None else self.sketch.estimate()
        return Estimate(known, known.error + self.missed)

    def sketch_with(self, other: EventCounts, salt: str) -> HyperLogLog:
        """Return the sketch of these clients and others."""
        sketch = self.sketch or sketch_of(self.clients, salt)
        sketch.merge(other.sketch or sketch_of(other.clients, salt))
        return sketch

    def drop_clients(self, salt: str) -> int:
        """Drop the smallest clients if there are too many. Return the count that all clients lose."""
        if len(self.clients) <= 2 * MOST:
            return 0
        self.sketch = self.sketch or sketch_of(self.clients, salt)
        loss = sorted(self.clients.values(), reverse=True)[MOST]
        self.error += loss
        self.clients = {client: number - loss for client, number in self.clients.items() if number > loss}
        return loss


def sketch_of(clients: Collection[str], salt: str) -> HyperLogLog:
    """Return the sketch of clients."""
    sketch = HyperLogLog()
    sketch.add(clients, salt)
    return sketch


def add_counts(counts: dict[_Name, int], others: Mapping[_Name, int]) -> None:
    """Add other counts to those of the same names."""
    for name, number in others.items():
        counts[name] = counts.get(name, 0) + number


Bucket = tuple[int, int]
"""The step and the start of a bucket, in seconds."""
Events = dict[str, EventCounts]
Batch = dict[Bucket, Events]
Records = Mapping[int, Mapping[tuple[str, str | None], int]]
"""Counts by the start of a bucket of the finest resolution, then by event and client."""


def batch_of(
    records: Records, losses: Losses, resolutions: Collection[Resolution], of_clients: Collection[Resolution], now: int
) -> Batch:
    """Return the buckets of all resolutions that records belong to, without those that are no longer kept.

    Only the resolutions ``of_clients`` get the clients.
    """
    batch: Batch = {}
    for time, counts in records.items():
        for step, kept in resolutions:
            if (start := time // step * step) + step > now - kept:
                events = batch.setdefault((step, start), {})
                has_clients = (step, kept) in of_clients
                for (event, client), number in counts.items():
                    if event not in events:
                        events[event] = EventCounts()
                    events[event].add(number, client if has_clients else None)
                for event, loss in losses.get(time, {}).items() if has_clients else ():
                    events[event].error += loss.error
                    events[event].missed += loss.missed
    return batch


def fold_events(events: Events, known: Collection[str], salt: str) -> Events:
    """Return events for a bucket that has the events ``known``: those without room count together, and in a sketch."""
    left_out = without_room({event: counts.total for event, counts in events.items()}, known)
    if not left_out:
        return events
    other = EventCounts()
    for event in left_out:
        other.merge(events[event], salt)
        add_counts(other.cells, dict.fromkeys(cells_of(event, salt), events[event].total))
    if OTHER in events:
        other.merge(events[OTHER], salt)
    return {event: counts for event, counts in events.items() if event not in left_out} | {OTHER: other}


def add_up_events(buckets: Iterable[Mapping[str, int]]) -> dict[str, Estimate]:
    """Return the total of each event. A bucket is a mapping from events to counts."""
    total, beside = Counter[str](), Counter[str]()
    for counts in buckets:
        total.update(counts)
        if OTHER in counts:
            beside.update(dict.fromkeys(counts, counts[OTHER]))
    return with_errors(total, beside)


def with_errors(total: Mapping[str, int], beside: Mapping[str, int]) -> dict[str, Estimate]:
    """Return totals with their errors. ``beside`` is the count of ``OTHER`` in the buckets that have the event.

    In other buckets, the event may be counted as ``OTHER``.
    """
    unknown = total.get(OTHER, 0)
    return {event: Estimate(number, unknown - beside.get(event, 0)) for event, number in total.items()}


def without_room(counts: Mapping[str, int], known: Collection[str]) -> Collection[str]:
    """Return the names that have no room beside the names ``known``. The largest of the new ones get the room."""
    if len(known) + len(counts) <= MOST:
        return ()
    new = [name for name in counts if name not in known and name != OTHER]
    new.sort(key=lambda name: (-counts[name], name))
    return set(new[max(0, MOST - len(known) + (OTHER in known)) :])
