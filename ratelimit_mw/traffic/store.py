"""``CountStore``: the interface of the stores of a traffic log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module

from ..errors import MissingExtraError
from .address import LogAddress
from .batch import OTHER, Batch, EventCounts
from .count_min import estimate
from .estimate import Estimate, error_of
from .retention import Run


class CountStore(ABC):
    """Keeps counts by bucket, event and client. Several processes may add to the same buckets.

    Each method may wait for the store, and raises ``StoreError`` when it fails.
    """

    @abstractmethod
    def write(self, batch: Batch, token: str, now: int) -> str | None:
        """Add the counts of a batch, and drop buckets that are no longer kept.

        If the log has another retention, nothing is written, and the retention of the log is returned.

        A batch that failed is written again with the same token until it succeeds, and counts once.
        """

    @abstractmethod
    def totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return the counts of each event by the start of the bucket, where it has a series of its own."""

    @abstractmethod
    def least_cells(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return the least cell of each event in the count-min sketch, by the start of the bucket, without zeros."""

    @abstractmethod
    def tables(self, run: Run, event: str, clients: Sequence[str]) -> dict[int, EventCounts]:
        """Return the counts of some clients of an event and their error, by the start of the bucket."""

    @abstractmethod
    def clients(self, runs: Sequence[Run], event: str) -> EventCounts:
        """Return the clients of an event, without its total."""

    def distinct(self, runs: Sequence[Run], event: str) -> Estimate:
        """Return the number of clients of an event."""
        return self.clients(runs, event).distinct()

    @abstractmethod
    def events(self, runs: Sequence[Run]) -> dict[str, Estimate]:
        """Return the counts of all events where they have a series of their own."""

    def counts(self, run: Run, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        """Return the counts of each event, or of a client of each, by the start of the bucket, without zeros.

        A count with an error is an ``Estimate``.
        """
        totals = self._all_totals(run, events)
        if client is None:
            return totals
        return {event: self._of_client(run, event, client, totals[event]) for event in events}

    def _all_totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return the counts of events, even where they have no series of their own."""
        totals = self.totals(run, list({*events, OTHER}))
        others = totals[OTHER]
        if without_series := [event for event in events if others.keys() - totals[event].keys()]:
            for event, cells in self.least_cells(run, without_series).items():
                found = {start: estimate(least, others[start]) for start, least in cells.items() if start in others}
                totals[event] = found | totals[event]
        return {event: totals[event] for event in events}

    def _of_client(self, run: Run, event: str, client: str, totals: Mapping[int, int]) -> dict[int, int]:
        """Return the counts of a client. All counts of an event without its own series may be its counts."""
        found: dict[int, int] = {start: Estimate(0, number) for start, number in totals.items() if error_of(number)}
        tables = self.tables(run, event, [client])
        return found | {start: counts.count_of(client) for start, counts in tables.items()}

    def expire(self, now: int) -> int:
        """Drop buckets that are no longer kept. Return the bytes of disk space that this frees."""
        return 0

    @abstractmethod
    def retention(self) -> str | None:
        """Return the retention of the log; None when there is no log yet."""

    def close(self) -> None:  # noqa: B027 - a store may have nothing to close
        """Close the connections."""


def open_counts(address: LogAddress) -> CountStore:
    """Open the store of a URL. It connects when it is first used."""
    try:
        module = import_module(f".{address.family}", __package__)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"a traffic log in {address.family}", address.family) from error
    store: CountStore = module.open_address(address)
    return store
