"""``MemoryCounts``: the counts of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ..forksafe import create_lock
from .address import LogAddress
from .counts import Batch, EventCounts, Events, add_counts, add_events, merged
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
            for (resolution, start), events in batch.items():
                add_events(self._buckets[resolution.step].setdefault(start, {}), events)
            for resolution in self._retention.resolutions:
                buckets = self._buckets[resolution.step]
                for start in [start for start in buckets if resolution.end_of(start) <= now]:
                    del buckets[start]

    def totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        return {event: {start: counts.total for start, counts in self._counts(run, event)} for event in events}

    def clients(self, run: Run, event: str, client: str | None = None) -> dict[int, EventCounts]:
        return {start: merged([counts]) for start, counts in self._counts(run, event)}

    def events(self, run: Run) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._lock:
            for _, events in self._in(run):
                add_counts(found, {event: counts.total for event, counts in events.items()})
        return found

    def retention(self) -> str:
        return str(self._retention)

    def _counts(self, run: Run, event: str) -> Iterator[tuple[int, EventCounts]]:
        """Yield the counts of an event by the start of the bucket. No counts are added meanwhile."""
        with self._lock:
            for start, events in self._in(run):
                if event in events:
                    yield start, events[event]

    def _in(self, run: Run) -> Iterator[tuple[int, Events]]:
        """Yield the buckets of a run. The caller holds the lock."""
        for start, events in self._buckets[run.step].items():
            if run.start <= start < run.end:
                yield start, events


def open_address(address: LogAddress) -> MemoryCounts:
    return MemoryCounts(address.retention)
