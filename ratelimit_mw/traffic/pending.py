"""``PendingCounts``: the counts of this process that are not written yet. Bounded. The caller holds a lock."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ..clock import SECOND
from ..errors import ConfigError
from .batch import OTHER

MOST: Final = 50_000
"""The most counts that wait to be written, for example while the store is unreachable."""
_LONGEST, _KEPT = 128, 100
"""The most characters of a name, and those that are kept of a longer one."""
Counts = dict[tuple[str, str | None], int]


class PendingCounts:
    """Counts by the start of the finest bucket, then by event and client.

    ``current`` is the start and the end of a bucket in microseconds, and its counts, to which ``record`` adds itself.
    """

    def __init__(self, step: int) -> None:
        self._step = step * SECOND
        self.take()

    def take(self) -> dict[int, Counts]:
        """Return the counts by the start of their bucket in seconds, and start anew."""
        taken: dict[int, Counts] = getattr(self, "buckets", {})
        self.buckets: dict[int, Counts] = {}
        self.current: tuple[int, int, Counts] = (0, 0, {})
        self._size = 0
        self.lost = 0  # Counts for which there was no room.
        return taken

    def add(self, event: str, client: str | None, number: int, time: int) -> None:
        """Count a number for a time in microseconds. When there are many counts, further names share one count."""
        start = time // self._step * self._step
        counts = self.buckets.get(start // SECOND, {})
        self.current = start, start + self._step, counts
        event, client = name_of("event", event), None if client is None else name_of("by", client)
        other = None if client is None else OTHER
        for most, key in enumerate(((event, client), (event, other), (OTHER, other)), start=1):
            if key in counts or self._size < most * MOST:
                self._size += key not in counts
                counts[key] = counts.get(key, 0) + number
                self.buckets[start // SECOND] = counts
                return
        self.lost += number


def name_of(argument: str, text: object) -> str:
    """Return an event or a client as stores have it: in UTF-8, and not too long. A digest replaces the rest."""
    if not isinstance(text, str) or not (text or argument == "by"):
        raise ConfigError(f"expected a text; got {text!r}", argument)
    data = text.encode("utf-8", "surrogatepass")
    if len(text) <= _LONGEST and data.decode("utf-8", "replace") == text:
        return text
    start = text[:_KEPT].encode("utf-8", "replace").decode()
    return f"{start}\N{HORIZONTAL ELLIPSIS}{blake2b(data, digest_size=16).hexdigest()}"
