"""``MemoryCounts``: the counts of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ..forksafe import create_lock
from .address import LogAddress
from .batch import OTHER, Batch, EventCounts, Events, add_up_events, fold_events
from .count_min import cells_of
from .digest import create_salt
from .estimate import Estimate
from .retention import Retention, Run
from .store import CountStore


class MemoryCounts(CountStore):
    """Keeps counts in memory. A forked child starts with those of its parent."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._salt = create_salt()
        self._buckets: dict[int, dict[int, Events]] = {each.step: {} for each in retention.resolutions}
        self._lock = create_lock(self, "_lock", threading.Lock)

    def write(self, batch: Batch, token: str, now: int) -> None:
        with self._lock:
            for (step, start), events in batch.items():
                known = self._buckets[step].setdefault(start, {})
                for event, counts in fold_events(events, known, self._salt).items():
                    own = known.get(event)
                    if own is None:
                        own = known[event] = EventCounts()
                    own.merge(counts, self._salt)
                    own.drop_clients(self._salt)
            for step, kept in self._retention.resolutions:
                buckets = self._buckets[step]
                for start in [start for start in buckets if start + 2 * step <= now - kept]:
                    del buckets[start]

    def totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {event: {} for event in events}
        with self._lock:
            for start, known in self._events(run):
                for event in found.keys() & known.keys():
                    found[event][start] = known[event].total
        return found

    def least_cells(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        cells = {event: cells_of(event, self._salt) for event in events}
        found: dict[str, dict[int, int]] = {event: {} for event in events}
        with self._lock:
            for start, known in self._events(run):
                if OTHER in known:
                    for event, own in cells.items():
                        if least := min(known[OTHER].cells.get(cell, 0) for cell in own):
                            found[event][start] = least
        return found

    def tables(self, run: Run, event: str, clients: Sequence[str]) -> dict[int, EventCounts]:
        found = {}
        with self._lock:
            for start, known in self._events(run):
                if own := known.get(event):
                    counts = {client: own.clients[client] for client in clients if client in own.clients}
                    found[start] = EventCounts(0, counts, own.error)
        return found

    def clients(self, runs: Sequence[Run], event: str) -> EventCounts:
        found = EventCounts()
        with self._lock:
            for run in runs:
                for _, known in self._events(run):
                    if event in known:
                        found.merge(known[event], self._salt)
        return found

    def events(self, runs: Sequence[Run]) -> dict[str, Estimate]:
        with self._lock:
            buckets = [events for run in runs for _, events in self._events(run)]
            return add_up_events({event: counts.total for event, counts in events.items()} for events in buckets)

    def retention(self) -> str:
        return str(self._retention)

    def _events(self, run: Run) -> Iterator[tuple[int, Events]]:
        """Yield the buckets of a run. The caller holds the lock."""
        for start, events in self._buckets[run.step].items():
            if run.start <= start < run.end:
                yield start, events


def open_address(address: LogAddress) -> MemoryCounts:
    return MemoryCounts(address.retention)
