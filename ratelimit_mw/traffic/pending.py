"""``PendingCounts``: the counts of this process that are not written yet. Bounded. The caller holds a lock."""

from __future__ import annotations

from collections import Counter as Sizes
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from ..clock import SECOND
from ..errors import ConfigError
from .batch import MOST as MOST_EVENTS
from .batch import OTHER
from .losses import Counts, Loss, Losses, clients_to_keep, drop_clients
from .number import Counter, Number

MOST: Final = 50_000
"""The maximum number of counts that wait to be written, for example while the store is unreachable."""
_LONGEST, _DIGEST = 128, 16
"""The maximum length of a name, and the bytes of the digest that replaces the rest of a longer one."""
_OVERLAP: Final = 60
"""Seconds after a bucket in which its numbers are read again: a thread may have read the time before its end."""
Adders = dict[tuple[str, ...], Counter]
"""The counters that count events together."""
_NO_BUCKET: Final[tuple[int, int, Adders]] = 0, 0, {}


class PendingCounts:
    """Counts by the start of the finest bucket, then by event and client.

    ``current`` is the start and the end of a bucket, and its counts, which ``record`` increments. ``adding`` is
    the same for events that are counted without a lock, with a counter for each. Both have times in the unit of the
    fast clock. ``edge`` converts microseconds to that unit.
    """

    def __init__(self, step: int, edge: Callable[[int], int] = int) -> None:
        self._step, self._edge = step * SECOND, edge
        self._numbers: dict[int, dict[tuple[str, ...], Number]] = {}
        self.adding = _NO_BUCKET
        self._start_over()

    def _start_over(self) -> None:
        self.buckets: dict[int, Counts] = {}
        self.current: tuple[int, int, Counts] = (0, 0, {})
        self._losses: dict[int, dict[str, Loss]] = {}
        self._size = 0
        self._is_full = False  # Events alone take the room: there are too few clients to drop.
        self.lost = 0  # Counts for which there was no room.

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and no thread can add a count without the lock."""
        return not (self.buckets or self._numbers)

    def take(self, now: int) -> tuple[dict[int, Counts], Losses]:
        """Return the counts and losses by the start of their bucket, and start anew. Times are in seconds."""
        for start, numbers in tuple(self._numbers.items()):
            for events, number in numbers.items():
                if count := number.take():
                    counts = self.buckets.setdefault(start, {})
                    for event in events:
                        counts[event, None] = counts.get((event, None), 0) + count
            if not start <= now < start + self._step // SECOND + _OVERLAP:
                del self._numbers[start]
                self.adding = _NO_BUCKET if self.adding[0] == self._edge(start * SECOND) else self.adding
        taken = self.buckets, self._losses
        self._start_over()
        self._size = sum(map(len, self._numbers.values()))
        return taken

    def count(self, events: tuple[str, ...], time: int) -> None:
        """Count each event once for a time in microseconds. Their next counts in the same bucket need no lock."""
        start = time // self._step * self._step
        numbers = self._numbers.setdefault(start // SECOND, {})
        if events not in numbers:
            if len(numbers) >= MOST_EVENTS or self._size >= MOST:
                for event in events:
                    self.add(event, None, 1, time)
                return
            numbers[events] = Number()
            self._size += 1
        if self.adding[:2] != self._edges(start):
            self.adding = *self._edges(start), {}
        self.adding[2][events] = numbers[events].counter
        next(numbers[events].counter)

    def add(self, event: str, client: str | None, number: int, time: int) -> None:
        """Count a number for a time in microseconds. When there are many counts, the smallest clients are dropped."""
        start = time // self._step * self._step
        counts = self.buckets.get(start // SECOND, {})
        self.current = *self._edges(start), counts
        event, client = name_of("event", event), None if client is None else name_of("by", client)
        for most, key in enumerate(((event, client), (event, None), (OTHER, None)), start=1):
            if key in counts or self._has_room(most):
                self._size += key not in counts
                counts[key] = counts.get(key, 0) + number
                self.buckets[start // SECOND] = counts
                if key[1] != client:
                    self._add_losses(start // SECOND, {key[0]: Loss(number, 1)})
                return
        self.lost += number

    def _edges(self, start: int) -> tuple[int, int]:
        return self._edge(start), self._edge(start + self._step)

    def _has_room(self, most: int) -> bool:
        """Return whether there are fewer than ``most * MOST`` counts. Drop the smallest clients first if that helps."""
        if most == 1 and self._size >= MOST and not self._is_full:
            self._make_room()
        return self._size < most * MOST

    def _make_room(self) -> None:
        """Drop the smallest clients, so that half of the room of all clients is free: the next time is not soon."""
        sizes = [Sizes(event for event, _ in counts) for counts in self.buckets.values()]
        others = self._size - sum(map(len, self.buckets.values()))
        room = MOST - others - sum(map(len, sizes))
        self._is_full = room < MOST // 4
        if not self._is_full:
            most = clients_to_keep([size for each in sizes for size in each.values()], room // 2)
            for start, counts in self.buckets.items():
                self._add_losses(start, drop_clients(counts, most))
            self._size = others + sum(map(len, self.buckets.values()))

    def _add_losses(self, start: int, losses: dict[str, Loss]) -> None:
        known = self._losses.setdefault(start, {})
        known |= {event: known.get(event, Loss()).plus(loss) for event, loss in losses.items()}


def name_of(argument: str, text: object, longest: int = _LONGEST) -> str:
    """Return an event or a client as stores have it: in UTF-8, and not too long. A digest replaces the rest."""
    if not isinstance(text, str) or not (text or argument == "by"):
        raise ConfigError(f"expected text; got {text!r}", argument)
    data = text.encode("utf-8", "surrogatepass")
    if len(text) <= longest and data.decode("utf-8", "replace") == text:
        return text
    start = text[: longest - 1 - 2 * _DIGEST].encode("utf-8", "replace").decode()
    return f"{start}\N{HORIZONTAL ELLIPSIS}{blake2b(data, digest_size=_DIGEST).hexdigest()}"
