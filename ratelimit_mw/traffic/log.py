"""``TrafficLog``: records events of clients, and returns their counts in any time range."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..clock import Clock, now_us
from ..errors import ConfigError, StoreError
from ..stores.url import redacted_url
from .counts import Curve, EventCounts, TopClients, merged
from .store import open_counts, parse_log_url, without_retention
from .writer import CountWriter, name_of

_LATEST: Final = 1e11
"""The latest accepted time, in seconds since 1970. A larger number is probably in milliseconds."""


class TrafficLog(CountWriter):
    """Counts events in several resolutions, of which the finer ones are kept for a shorter time.

    A process gathers its counts in memory. It writes them every 15 seconds while there are any, and when it ends.
    Clients are kept only in resolutions of an hour or more, so a range of theirs is widened to whole hours.

    Args:
        url: The URL of the log: ``memory://``, ``sqlite:///traffic.db`` or a Redis such as ``redis://cache:6379/0``.
        retention: The resolutions, and how long each is kept, as in Graphite. Default: the option ``retention`` of
            the URL, or ``"1m:1d,5m:7d,1h:90d,1d:2y,1w:10y"``.
        clock: A function that returns whole microseconds since 1970. Default: the time of this machine.

    Raises:
        ConfigError: The URL or the retention is invalid, or a file has another retention.
        MissingExtraError: The library of the store is not installed.

    Example:
        >>> log = TrafficLog("memory://")
        >>> for address in ("192.0.2.7", "192.0.2.7", "192.0.2.8"):
        ...     log.record("url_shorten", by=address, at=1_767_268_800)
        >>> day = (1_767_225_600, 1_767_312_000)
        >>> log.total("url_shorten", *day), log.distinct("url_shorten", *day)
        (3, 2)
    """

    @classmethod
    def open(cls, url: str, clock: Clock = now_us, create: bool = False) -> TrafficLog:
        """Open a log that exists, with its own retention.

        Args:
            url: The URL of the log.
            clock: As for ``TrafficLog``.
            create: Whether to return a new log where there is none.

        Returns:
            The log.

        Raises:
            ConfigError: The URL is invalid.
            StoreError: There is no log, the store is unreachable, or the file is damaged.
        """
        store = open_counts(parse_log_url(url))
        try:
            retention = store.retention()
        finally:
            store.close()
        if retention is None and not create:
            raise StoreError(f"there is no traffic log at {redacted_url(url)}. The first write creates it")
        return cls(url if retention is None else without_retention(url)[0], retention, clock)

    def total(self, event: str, start: float, end: float, by: str | None = None) -> int:
        """Return the count of an event in a time range, which is widened to whole buckets.

        Args:
            event: The event.
            start: The start of the range, in seconds since 1970.
            end: The end of the range, in seconds since 1970.
            by: The client. Default: all clients, and records without one.

        Returns:
            The count. It includes all records of this process, and those that other processes have written. That of an
            event is exact, except that beyond 10,000 events in a bucket, new ones count as the event ``"other"``. That
            of a client is exact if no bucket had more than 2,000 clients of the event, and an estimate otherwise.

        Raises:
            ConfigError: The range ends before its start, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        event, client = name_of("event", event), None if by is None else name_of("by", by)
        runs = self._runs(start, end, by is not None)
        return sum(sum(self._counts(run, [event], client)[event].values()) for run in runs)

    def curve(self, event: str, start: float, end: float, points: int = 300, by: str | None = None) -> Curve:
        """Return the counts of an event in a time range, in equal steps.

        The steps are the finest that the log still keeps for the start of the range. They are longer if there would be
        more than ``points``. The range is widened to whole steps, which start at multiples of their length since 1970.

        Args:
            event: The event.
            start: The start of the range, in seconds since 1970. A curve never starts before the oldest bucket.
            end: The end of the range, in seconds since 1970.
            points: The maximum number of counts, at least 2.
            by: The client. Default: all clients, and records without one.

        Returns:
            The curve. Steps without a record have the count 0.

        Raises:
            ConfigError: The range ends before its start, ``points`` is too small, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        return self.curves([event], start, end, points, by)[event]

    def curves(
        self, events: Iterable[str], start: float, end: float, points: int = 300, by: str | None = None
    ) -> dict[str, Curve]:
        """Return the counts of several events in a time range, in the same equal steps. This is one query.

        Args:
            events: The events.
            start: The start of the range, as for ``curve``.
            end: The end of the range, in seconds since 1970.
            points: The maximum number of counts of each event, at least 2.
            by: The client. Default: all clients, and records without one.

        Returns:
            The curve of each event. An event without a record has the counts 0.

        Raises:
            ConfigError: The range ends before its start, ``points`` is too small, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.

        Example:
            >>> log = TrafficLog("memory://")
            >>> log.record("login", at=1_767_268_800)
            >>> log.curves(["login", "logout"], 1_767_268_800, 1_767_268_900)["login"].counts[0]
            1
        """
        if isinstance(events, str):
            raise ConfigError(f"expected several events, such as [{events!r}]; got {events!r}", "events")
        if type(points) is not int or points < 2:
            raise ConfigError(f"expected a whole number of at least 2; got {points!r}", "points")
        names = {event: name_of("event", event) for event in events}
        client = None if by is None else name_of("by", by)
        retention = self.retention if client is None else self._of_clients
        step, run = retention.curve(*self._range(start, end), points)
        found = self._counts(range(run.start, run.stop, step), sorted(set(names.values())), client) if names else {}
        return {event: Curve(run.start, run.step, _add_up(found[name], run)) for event, name in names.items()}

    def top(self, event: str, start: float, end: float, k: int = 10) -> TopClients:
        """Return the clients with the highest counts of an event in a time range, which is widened to whole buckets.

        A bucket that had more than 2,000 clients of an event has only those with the highest counts. Then clients below
        ``complete_from`` of the list may be missing, and the count of a client may be too low, but by less than that.

        Args:
            event: The event.
            start: The start of the range, in seconds since 1970.
            end: The end of the range, in seconds since 1970.
            k: The maximum number of clients to return, at least 1.

        Returns:
            The clients, the highest counts first.

        Raises:
            ConfigError: The range ends before its start, ``k`` is too small, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        if type(k) is not int or k < 1:
            raise ConfigError(f"expected a whole number of at least 1; got {k!r}", "k")
        return self._clients(event, start, end).top(k)

    def distinct(self, event: str, start: float, end: float) -> int:
        """Return the number of different clients of an event in a time range, which is widened to whole buckets.

        It is exact if no bucket had more than 2,000 clients of the event. Otherwise it is an estimate with a standard
        error of 1.63%.

        Args:
            event: The event.
            start: The start of the range, in seconds since 1970.
            end: The end of the range, in seconds since 1970.

        Returns:
            The number of clients.

        Raises:
            ConfigError: The range ends before its start, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        return self._clients(event, start, end).distinct()

    def events(self, start: float, end: float) -> dict[str, int]:
        """Return the count of each event in a time range, which is widened to whole buckets.

        Args:
            start: The start of the range, in seconds since 1970.
            end: The end of the range, in seconds since 1970.

        Returns:
            The counts by event, the highest first. Beyond 10,000 events in a bucket, new ones count as ``"other"``.

        Raises:
            ConfigError: The range ends before its start, or the log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        counts = Counter[str]()
        for run in self._runs(start, end):
            counts.update(self._store.events(run))
        return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))

    def _counts(self, run: range, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        """Return the counts of each event, or of a client of each, by the start of the bucket."""
        if client is None:
            return self._store.totals(run, events)
        return {
            event: {start: each.count_of(client) for start, each in self._store.clients(run, event).items()}
            for event in events
        }

    def _clients(self, event: str, start: float, end: float) -> EventCounts:
        """Return the clients of an event in a time range, without its total."""
        name = name_of("event", event)
        return merged(each for run in self._runs(start, end, True) for each in self._store.clients(run, name).values())

    def _range(self, start: float, end: float) -> tuple[int, int, int]:
        """Return a range in whole seconds, and the time. Write the pending records first."""
        for name, value in (("start", start), ("end", end)):
            if type(value) not in (int, float) or not 0 <= value < _LATEST:
                raise ConfigError(f"expected seconds since 1970; got {value!r}", name)
        if end < start:
            raise ConfigError(f"the range ends at {end}, before its start at {start}")
        self.flush()
        self._require_same_log()
        return int(start), math.ceil(end), self._now()

    def _runs(self, start: float, end: float, of_clients: bool = False) -> list[range]:
        return (self._of_clients if of_clients else self.retention).runs(*self._range(start, end))


def _add_up(found: Mapping[int, int], run: range) -> list[int]:
    """Return the counts of the steps of a run, from those of buckets."""
    counts = [0] * len(run)
    for at, number in found.items():
        counts[(at - run.start) // run.step] += number
    return counts
