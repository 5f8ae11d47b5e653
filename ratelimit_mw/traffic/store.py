"""``CountStore``: the interface of the stores of a traffic log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module

from ..errors import MissingExtraError
from .address import LogAddress
from .counts import Batch, EventCounts
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
        """Return the counts of each event by the start of the bucket, without zeros."""

    @abstractmethod
    def clients(self, run: Run, event: str, client: str | None = None) -> dict[int, EventCounts]:
        """Return the clients of an event by the start of the bucket: all, or at least the one that is named.

        If none is named, a client may be in one of its buckets, with its count in all of them.
        """

    @abstractmethod
    def events(self, run: Run) -> dict[str, int]:
        """Return the counts of all events."""

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
