"""``PendingCounts``: the counts of this process that are not written yet. Bounded. The caller holds a lock."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from ..clock import SECOND
from ..errors import ConfigError
from .counts import MOST_CLIENTS, Batch, Key, add_records
from .retention import Retention

_MOST_NEW: Final = 20_000
"""The maximum number of counts before they are added to the buckets of the log, which have bounds."""
_MOST: Final = 200_000
"""The maximum number of counts in buckets. Then the smallest clients go, and new events count together."""
_LONGEST, _DIGEST = 128, 16
"""The maximum length of a name, and the bytes of the digest that replaces the rest of a longer one."""


class PendingCounts:
    """Counts by the start of the finest bucket, then by event and client. When there are many, they become a batch.

    ``current`` is the start and the end of a bucket, and its counts, which ``record`` increments. Both times are in the
    unit of the fast clock. ``edge`` converts microseconds to that unit.
    """

    def __init__(self, retention: Retention, edge: Callable[[int], int] = int) -> None:
        self._retention, self._of_clients = retention, retention.of_clients()
        self._step, self._edge = retention.finest.step * SECOND, edge
        self._batch: Batch = {}
        self._start_over()

    def _start_over(self) -> None:
        self._records: dict[int, dict[Key, int]] = {}
        self.current: tuple[int, int, dict[Key, int]] = (0, 0, {})
        self._size = 0

    @property
    def is_empty(self) -> bool:
        return not (self._records or self._batch)

    def add(self, event: str | tuple[str, ...], client: str | None, number: int, time: int, now: int) -> None:
        """Count a number for a time in microseconds. The next ``record`` for its bucket is one step."""
        if self._size >= _MOST_NEW:
            self._shrink(now)
        key = event, client
        start = time // self._step * self._step
        counts = self._records.setdefault(start // SECOND, {})
        self._size += key not in counts
        counts[key] = counts.get(key, 0) + number
        self.current = self._edge(start), self._edge(start + self._step), counts

    def take(self) -> Callable[[int], Batch]:
        """Return a function that returns the counts as a batch at a time in seconds, and start anew.

        It takes long, so it is called without the lock.
        """
        batch, records = self._batch, self._records
        self._batch = {}
        self._start_over()

        def build(now: int) -> Batch:
            add_records(batch, records, self._retention, self._of_clients, now)
            return batch

        return build

    def _shrink(self, now: int) -> None:
        """Add the counts to the batch, which has at most about ``_MOST`` counts."""
        add_records(self._batch, self._records, self._retention, self._of_clients, now, self._is_full())
        self._start_over()
        for bucket in [bucket for bucket in self._batch if bucket[0].end_of(bucket[1]) <= now]:
            del self._batch[bucket]
        most = MOST_CLIENTS
        while most and self._is_full():
            most //= 2
            for events in self._batch.values():
                for counts in events.values():
                    counts.drop_clients(most)

    def _is_full(self) -> bool:
        return sum(counts.size for events in self._batch.values() for counts in events.values()) > _MOST


def name_of(argument: str, text: object, longest: int = _LONGEST) -> str:
    """Return an event or a client as stores have it: in UTF-8, and not too long. A digest replaces the rest."""
    if not isinstance(text, str) or not (text or argument == "by"):
        raise ConfigError(f"expected text; got {text!r}", argument)
    data = text.encode("utf-8", "surrogatepass")
    if len(text) <= longest and data.decode("utf-8", "replace") == text:
        return text
    start = text[: longest - 1 - 2 * _DIGEST].encode("utf-8", "replace").decode()
    return f"{start}\N{HORIZONTAL ELLIPSIS}{blake2b(data, digest_size=_DIGEST).hexdigest()}"
