"""``CountStore``: the interface of the stores of a traffic log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module

from ..errors import MissingExtraError
from .address import LogAddress
from .batch import Batch
from .retention import Run


class CountStore(ABC):
    """Keeps counts by bucket, event and client. Several processes may add to the same buckets.

    Each method may wait for the store, and raises ``StoreError`` when it fails.
    """

    @abstractmethod
    def write(self, batch: Batch, token: str, now: int) -> None:
        """Add the counts of a batch, and drop buckets that are no longer kept.

        A batch that failed is written again with the same token until it succeeds, and counts once.
        """

    @abstractmethod
    def counts(self, run: Run, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        """Return the counts of each event, or of a client of each, by the start of the bucket, without zeros."""

    @abstractmethod
    def clients(self, runs: Sequence[Run], event: str) -> dict[str, int]:
        """Return the counts of the clients of an event."""

    @abstractmethod
    def events(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return the counts of all events."""

    @abstractmethod
    def distinct(self, runs: Sequence[Run], event: str) -> int:
        """Return the number of clients of an event, as far as the store knows."""

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
