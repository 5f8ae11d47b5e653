"""``EventCounts``: the counts of an event in a bucket, with a bounded list of clients. Pure, no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from ..errors import ConfigError
from .retention import Resolution, Retention
from .sketches import Dropped

OTHER: Final = "other"
"""The event that counts all events beyond ``MAX_EVENTS`` in a bucket."""
MAX_EVENTS: Final = 10_000
MAX_CLIENTS: Final = 1_000
"""The clients that an event keeps when it has more than twice as many."""
_MAX_NAME, _DIGEST = 128, 16
"""The maximum length of a name, and the bytes of the digest that replaces the rest of a longer one."""
_decode: Final = msgspec.msgpack.Decoder(tuple[dict[str, int], bytes | None]).decode


@dataclass(slots=True)
class EventCounts:
    """The counts of an event.

    Attributes:
        total: All counts.
        clients: The counts of records with a client.
        dropped: The clients that were dropped from ``clients``; None if the list is complete.
    """

    total: int = 0
    clients: dict[str, int] = field(default_factory=dict)
    dropped: Dropped | None = None

    @property
    def size(self) -> int:
        """The memory that the counts take, as a number of clients."""
        return 1 + len(self.clients) + MAX_CLIENTS * (self.dropped is not None)

    def add(self, number: int, client: str | None) -> None:
        """Add a number to the total and to the count of the client."""
        self.total += number
        if client is not None:
            self.clients[client] = self.clients.get(client, 0) + number

    def merge(self, other: EventCounts) -> None:
        """Add other counts."""
        self.total += other.total
        for client, number in other.clients.items():
            self.clients[client] = self.clients.get(client, 0) + number
        if other.dropped is not None:
            if self.dropped is None:
                self.dropped = Dropped()
            self.dropped.merge(other.dropped)

    def count_of(self, client: str) -> int:
        """Return the count of a client. It is an estimate if the client is not in the list, and some were dropped."""
        return self.clients.get(client) or (0 if self.dropped is None else self.dropped.count_of(client))

    def drop_clients(self, most: int) -> None:
        """Keep the ``most`` largest clients if there are more than twice as many."""
        if len(self.clients) <= 2 * most:
            return
        ranked = sorted(self.clients.items(), key=lambda each: -each[1])
        self.clients = dict(ranked[:most])
        if self.dropped is None:
            self.dropped = Dropped()
        self.dropped.add(dict(ranked[most:]))

    @property
    def has_clients(self) -> bool:
        return bool(self.clients) or self.dropped is not None

    def clients_added_to(self, known: bytes | None) -> bytes:
        """Return the clients of a bucket as a store keeps them: those that it has, and these."""
        whole = EventCounts() if known is None else clients_of(known)
        whole.merge(self)
        whole.drop_clients(MAX_CLIENTS)
        return msgspec.msgpack.encode((whole.clients, None if whole.dropped is None else bytes(whole.dropped)))

    def top(self, most: int) -> TopClients:
        """Return the clients with the highest counts."""
        found = nsmallest(most, self.clients.items(), key=lambda each: (-each[1], each[0]))
        return TopClients(found, 1 if self.dropped is None else self.dropped.most + 1)

    def distinct(self) -> int:
        """Return the number of clients. It is an estimate if clients were dropped."""
        return len(self.clients) if self.dropped is None else self.dropped.distinct_with(self.clients)


def clients_of(data: bytes) -> EventCounts:
    """Return the clients that a store has kept, without their total. ``ValueError`` for other bytes."""
    try:
        clients, sketch = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"expected a list of clients: {error}") from None
    return EventCounts(0, clients, None if sketch is None else Dropped(sketch))


def merged(parts: Iterable[EventCounts]) -> EventCounts:
    """Return the counts of several buckets together."""
    whole = EventCounts()
    for part in parts:
        whole.merge(part)
    return whole


class ClientCount(NamedTuple):
    """A client and its count.

    Args:
        client: The client, as it was recorded.
        total: The number of its records.
    """

    client: str
    total: int


class TopClients(list[ClientCount]):
    """The clients with the highest counts, the highest first.

    Args:
        clients: The clients and their counts.
        complete_from: The count from which on no client is missing: 1 if the log had room for all clients. A count
            may be too low, but by less than this number.

    Example:
        >>> clients = TopClients([("192.0.2.7", 40)], complete_from=3)
        >>> clients[0].client, clients.complete_from
        ('192.0.2.7', 3)
    """

    def __init__(self, clients: Sequence[tuple[str, int]] = (), complete_from: int = 1) -> None:
        super().__init__(ClientCount(*each) for each in clients)
        self.complete_from = complete_from


class Curve(NamedTuple):
    """The counts of a time range.

    Args:
        start: The start of the first count, in seconds since 1970.
        step: The length of each count, in seconds.
        counts: The counts. The first one is that from ``start`` to ``start + step``.
    """

    start: int
    step: int
    counts: list[int]

    @property
    def end(self) -> int:
        """The end of the last count, in seconds since 1970."""
        return self.start + self.step * len(self.counts)


Bucket = tuple[Resolution, int]
"""The resolution of a bucket and its start, in seconds since 1970."""
Events = dict[str, EventCounts]
Batch = dict[Bucket, Events]
Key = tuple[str, str | None]
"""An event and a client."""
Records = Mapping[int, Mapping[Key, int]]
"""Counts by the start of a bucket of the finest resolution."""


def add_events(known: Events, events: Mapping[str, EventCounts], is_full: bool = False) -> None:
    """Add events to those of a bucket, which keeps its bounds. A full one gets no new events."""
    for event, counts in fit_events(events, known, 0 if is_full else MAX_EVENTS).items():
        whole = known.setdefault(event, EventCounts())
        whole.merge(counts)
        whole.drop_clients(MAX_CLIENTS)


def drop_expired(batch: Batch, now: int) -> None:
    """Drop the buckets that are no longer kept."""
    for resolution, start in [*batch]:
        if resolution.end_of(start) <= now:
            del batch[resolution, start]


def fit_events(events: Mapping[str, EventCounts], known: Collection[str], most: int) -> Mapping[str, EventCounts]:
    """Return events for a bucket that has the events ``known``: those beyond ``most`` count together as ``OTHER``."""
    room, fitting = most - len(known), defaultdict[str, EventCounts](EventCounts)
    if room >= len(events):
        return events
    for event, counts in events.items():
        if event not in known:
            room -= 1
        name = event if event in known or room >= 0 else OTHER
        fitting[name].merge(counts)
    return fitting


def add_records(batch: Batch, records: Records, retention: Retention, now: int, is_full: bool = False) -> None:
    """Add records to the buckets of all resolutions that still keep them. Only some resolutions get the clients."""
    for time, counts in records.items():
        for resolution in retention.resolutions:
            start = time // resolution.step * resolution.step
            if resolution.end_of(start) > now:
                has_clients = resolution in retention.of_clients.resolutions
                add_events(batch.setdefault((resolution, start), {}), _events_of(counts, has_clients), is_full)


def _events_of(counts: Mapping[Key, int], has_clients: bool) -> Events:
    events = defaultdict[str, EventCounts](EventCounts)
    for (event, client), number in counts.items():
        events[event].add(number, client if has_clients else None)
    return events


def bounded(argument: str, text: object, longest: int = _MAX_NAME) -> str:
    """Return an event or a client as stores have it: in UTF-8, and not too long. A digest replaces the rest."""
    if not isinstance(text, str) or not (text or argument == "by"):
        raise ConfigError(f"expected text; got {text!r}", argument)
    data = text.encode("utf-8", "surrogatepass")
    if len(text) <= longest and data.decode("utf-8", "replace") == text:
        return text
    start = text[: longest - 1 - 2 * _DIGEST].encode("utf-8", "replace").decode()
    return f"{start}\N{HORIZONTAL ELLIPSIS}{blake2b(data, digest_size=_DIGEST).hexdigest()}"
