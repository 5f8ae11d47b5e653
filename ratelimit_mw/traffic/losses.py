"""``Loss``: the counts that a process with too many clients drops. Pure, no I/O.

The clients of an event become a Misra-Gries summary, as those of a bucket in ``batch.py``: the losses add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

MOST: Final = 1_000
"""The maximum number of clients that an event keeps."""
Counts = dict[tuple[str, str | None], int]
"""Counts by event and client."""


class Loss(NamedTuple):
    """The loss of an event in a bucket.

    Args:
        error: The most by which the count of a client is too low.
        missed: The most clients without a count.
    """

    error: int = 0
    missed: int = 0

    def plus(self, other: Loss) -> Loss:
        """Return both losses together."""
        return Loss(self.error + other.error, self.missed + other.missed)


Losses = Mapping[int, Mapping[str, Loss]]
"""Losses by the start of a bucket of the finest resolution, then by event."""


def clients_to_keep(sizes: Collection[int], room: int) -> int:
    """Return how many clients each event can keep, so that all fit into ``room``. ``sizes`` are their current numbers.

    >>> clients_to_keep([40_000, 300], 25_000), clients_to_keep([900] * 50, 25_000)
    (1000, 500)
    """
    most = MOST
    while sum(min(size, most) for size in sizes) > room:
        most //= 2
    return most


def drop_clients(counts: Counts, most: int) -> dict[str, Loss]:
    """Keep the largest clients of each event. Return what each event loses. Its total stays.

    The count of the client at rank ``most`` + 1 is subtracted from all. Lost counts stay, without a client.
    """
    thresholds = _thresholds(counts, most)
    before, lost, missed = counts.copy(), Counter[str](), Counter[str]()
    counts.clear()
    for (event, client), number in before.items():
        loss = 0 if client is None else thresholds.get(event, 0)
        if number > loss:
            counts[event, client] = number - loss
        else:
            missed[event] += 1
        lost[event] += min(number, loss)
    for event in thresholds:
        counts[event, None] = counts.get((event, None), 0) + lost[event]
    return {event: Loss(error, missed[event]) for event, error in thresholds.items()}


def _thresholds(counts: Counts, most: int) -> dict[str, int]:
    """Return the count of the client at rank ``most`` + 1, by event."""
    numbers: dict[str, list[int]] = {}
    for (event, client), number in counts.items():
        if client is not None:
            numbers.setdefault(event, []).append(number)
    return {event: sorted(each, reverse=True)[most] for event, each in numbers.items() if len(each) > most}
