"""``MemoryCounts``: the counts of this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from ..forksafe import create_lock
from .address import LogAddress
from .batch import OTHER, Batch, EventCounts, Events, fold_events, without_room
from .retention import Retention, Run
from .store import CountStore


class MemoryCounts(CountStore):
    """Keeps counts in memory. A forked child starts with those of its parent."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._buckets: dict[int, dict[int, Events]] = {each.step: {} for each in retention.resolutions}
        self._lock = create_lock(self, "_lock", threading.Lock)

    def write(self, batch: Batch, token: str, now: int) -> None:
        with self._lock:
            for (step, start), events in batch.items():
                known = self._buckets[step].setdefault(start, {})
                for event, counts in fold_events(events, known).items():
                    own = known.setdefault(event, EventCounts())
                    own.merge(counts, without_room(counts.clients, own.clients))
            for step, kept in self._retention.resolutions:
                buckets = self._buckets[step]
                for start in [start for start in buckets if start + 2 * step <= now - kept]:
                    del buckets[start]

    def counts(self, run: Run, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {event: {} for event in events}
        with self._lock:
            for start, known in self._events(run):
                for event in found.keys() & known.keys():
                    counts = known[event]
                    if number := counts.total if client is None else counts.clients.get(client, 0):
                        found[event][start] = number
        return found

    def clients(self, runs: Sequence[Run], event: str) -> dict[str, int]:
        total = Counter[str]()
        with self._lock:
            for run in runs:
                for _, events in self._events(run):
                    if event in events:
                        total.update(events[event].clients)
        return total

    def events(self, runs: Sequence[Run]) -> dict[str, int]:
        total = Counter[str]()
        with self._lock:
            for run in runs:
                for _, events in self._events(run):
                    total.update({event: counts.total for event, counts in events.items()})
        return total

    def distinct(self, runs: Sequence[Run], event: str) -> int:
        return len(self.clients(runs, event).keys() - {OTHER})

    def retention(self) -> str:
        return str(self._retention)

    def _events(self, run: Run) -> Iterator[tuple[int, Events]]:
        """Yield the buckets of a run. The caller holds the lock."""
        for start, events in self._buckets[run.step].items():
            if run.start <= start < run.end:
                yield start, events


def open_address(address: LogAddress) -> MemoryCounts:
    return MemoryCounts(address.retention)
