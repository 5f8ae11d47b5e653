"""``TrafficLog``: records events of clients, and returns their counts in any time range."""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Final
from weakref import WeakSet

from ..clock import SECOND, Clock, checked_clock, wall_us
from ..errors import ConfigError, RateLimitError, StoreError
from ..quota import MAX_AMOUNT
from ..runtime.forksafe import CHANCE, check_process, create_lock
from ..runtime.heartbeat import Heartbeat
from ..stores.url import redacted_url
from .counts import MAX_CLIENTS, Batch, Curve, EventCounts, Key, TopClients, add_records, bounded, drop_expired, merged
from .retention import DAY
from .store import open_counts, parse_log_url, without_retention

INTERVAL: Final = 15.0
"""Seconds from one write of a process to the next."""
_ONE: Final = 1
_MAX_NEW_COUNTS: Final = 20_000
"""The maximum number of counts before they are added to the buckets of the log, which have bounds."""
_MAX_COUNTS: Final = 200_000
"""The maximum number of counts in buckets. Then the smallest clients go, and new events count together."""
_log = logging.getLogger("ratelimit_mw")
_LATEST: Final = 1e11
"""The latest accepted time, in seconds since 1970. A larger number is probably in milliseconds."""


class TrafficLog:
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

    _writes_first = True
    """Whether a query writes the counts of this process before."""

    def __init__(self, url: str, retention: str | None = None, clock: Clock = wall_us) -> None:
        address = parse_log_url(url, retention)
        self.name = redacted_url(url)
        self.retention = address.retention
        self._clock = checked_clock(clock)
        # Before a fork, locks are taken in the order of their creation, which is that of their use.
        self._writing = create_lock(self, "_writing", threading.Lock)
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._beat = Heartbeat(TrafficLog._flush_due, INTERVAL, "write the traffic log", "it is written at exit")
        self._store = open_counts(address)
        self._start_over()
        if address.family == "sqlite":  # a server may be unreachable, so its log is checked when it is first used
            with suppress(StoreError):  # so is a damaged file, or one that is locked
                self._require_same_log()
        _of_process.add(self)

    def _start_over(self) -> None:
        """Drop all counts. A forked child does so, because the parent writes its own counts."""
        self._batch: Batch = {}
        self._unwritten: tuple[Batch, str] | None = None
        self._is_same_log = self._has_failed = False
        self._start_records()

    def _start_records(self) -> None:
        """Start without counts that are in no batch yet.

        The current bucket is the one that ``record`` increments: its start and its end in microseconds, and its counts.
        """
        self._records: dict[int, dict[Key, int]] = {}
        self._current: tuple[int, int, dict[Key, int]] = (0, 0, {})
        self._size = 0

    @classmethod
    def open(cls, url: str, clock: Clock = wall_us, create: bool = False) -> TrafficLog:
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

    def record(self, event: str, by: str | None = None, n: int = 1, at: float | None = None) -> None:
        """Count an event. This makes no call to the store.

        Args:
            event: The event, a string.
            by: The client, a string. Default: the event counts for no client.
            n: How many times to count the event, a whole number from 1 to 10**12.
            at: The time in seconds since 1970. Default: now.

        Raises:
            ConfigError: An argument has another type, or the log does not keep that time.
        """
        if n is _ONE and at is None:  # nearly always
            time = self._clock()
            with self._lock:
                start, end, counts = self._current
                if start <= time < end:
                    try:
                        counts[event, by] += 1
                        return
                    except (KeyError, TypeError):  # it is new, or not a string
                        pass
        if type(n) is not int or not 0 < n <= MAX_AMOUNT:
            raise ConfigError(f"expected a whole number from 1 to {MAX_AMOUNT:,}; got {n!r}", "n")
        time = self._clock() if at is None else self._checked_time(at)
        self._add(bounded("event", event), None if by is None else bounded("by", by), n, time)

    def flush(self) -> None:
        """Write the counts of this process now. Counts that cannot be written are kept for the next call.

        Raises:
            ConfigError: The log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        check_process()
        with self._writing:
            for _ in range(1 if self._unwritten is None else 2):
                if (batch := self._next_batch()) is not None:
                    self._require_same(self._store.write(*batch, self._now()))
                    self._unwritten = None
        self._has_failed = False

    def as_written(self) -> TrafficLog:
        """Write the counts of this process, once for several queries.

        Returns:
            The log for these queries, none of which writes.

        Raises:
            ConfigError: The log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        self.flush()
        self._require_same_log()
        log = copy(self)
        log._writes_first = False
        return log

    def close(self) -> None:
        """Write the counts, and close the connections. A later record opens the log again.

        Raises:
            ConfigError: The log has another retention.
            StoreError: The store is unreachable, or the file is damaged.
        """
        self._beat.close()
        try:
            self.flush()
        finally:
            self._store.close()

    def close_or_log(self) -> None:
        """Close the log. An error is logged."""
        self._beat.close()
        self._flush_or_log()
        self._store.close()

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
        event, client = bounded("event", event), None if by is None else bounded("by", by)
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
        names = {event: bounded("event", event) for event in events}
        client = None if by is None else bounded("by", by)
        retention = self.retention if client is None else self.retention.of_clients
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
        name = bounded("event", event)
        return merged(each for run in self._runs(start, end, True) for each in self._store.clients(run, name).values())

    def _range(self, start: float, end: float) -> tuple[int, int, int]:
        """Return a range in whole seconds, and the time. Write the pending records first."""
        for name, value in (("start", start), ("end", end)):
            if type(value) not in (int, float) or not 0 <= value < _LATEST:
                raise ConfigError(f"expected seconds since 1970; got {value!r}", name)
        if end < start:
            raise ConfigError(f"the range ends at {end}, before its start at {start}")
        if self._writes_first:
            self.flush()
        self._require_same_log()
        return int(start), math.ceil(end), self._now()

    def _runs(self, start: float, end: float, of_clients: bool = False) -> list[range]:
        return (self.retention.of_clients if of_clients else self.retention).runs(*self._range(start, end))

    def _now(self) -> int:
        return self._clock() // SECOND

    def _add(self, event: str, by: str | None, number: int, time: int) -> None:
        """Count a number for a time in microseconds. The next ``record`` for its bucket is one step."""
        check_process()
        key, step = (event, by), self.retention.finest.step * SECOND
        with self._lock:
            if self._size >= _MAX_NEW_COUNTS:
                self._shrink(self._now())
            start = time // step * step
            counts = self._records.setdefault(start // SECOND, {})
            self._size += key not in counts
            counts[key] = counts.get(key, 0) + number
            self._current = start, start + step, counts
            self._beat.hold(self)

    def _shrink(self, now: int) -> None:
        """Add the counts to the batch, which has at most about ``_MAX_COUNTS`` counts."""
        add_records(self._batch, self._records, self.retention, now, self._is_full())
        self._start_records()
        drop_expired(self._batch, now)
        most = MAX_CLIENTS
        while most and self._is_full():
            most //= 2
            for events in self._batch.values():
                for counts in events.values():
                    counts.drop_clients(most)

    def _is_full(self) -> bool:
        return sum(counts.size for events in self._batch.values() for counts in events.values()) > _MAX_COUNTS

    def _checked_time(self, at: object) -> int:
        """Return a time in microseconds. One that the log does not keep would be lost, or would stay for too long.

        The clock of the caller may be ahead of that of the log, such as after a pause of the machine.
        """
        oldest, latest = self._now() - self.retention.longest.kept, self._now() + DAY
        if not isinstance(at, int | float) or type(at) is bool or not oldest < at <= latest:
            raise ConfigError(f"expected a time from {oldest} to {latest}, in seconds since 1970; got {at!r}", "at")
        return int(at * SECOND)

    def _next_batch(self) -> tuple[Batch, str] | None:
        """Return the batch to write: the one whose write failed, or the counts since then."""
        if self._unwritten is None:
            with self._lock:
                batch, records = self._batch, self._records
                self._batch = {}
                self._start_records()
            add_records(batch, records, self.retention, self._now())  # takes long
            if batch:
                self._unwritten = batch, f"{CHANCE.getrandbits(64):x}"
        return self._unwritten

    def _require_same_log(self) -> None:
        """Raise ``ConfigError`` if the log has another retention: its buckets would mean other times."""
        if not self._is_same_log:
            found = self._store.retention()
            self._require_same(found)
            self._is_same_log = found is not None

    def _require_same(self, found: str | None) -> None:
        if found not in (None, str(self.retention)):
            message = f'{self.name} has the retention "{found}"; got "{self.retention}"'
            raise ConfigError(f"{message}. Use that of the log, or start a new log")

    def _flush_due(self) -> None:
        """Write the counts, at an interval. The thread ends when there are none."""
        self._flush_or_log()
        with self._lock:
            if not (self._records or self._batch or self._unwritten):
                self._beat.release(self)

    def _flush_or_log(self) -> None:
        try:
            self.flush()
        except RateLimitError as error:
            if not self._has_failed:
                _log.warning("the traffic log is not written (%s). Its counts wait in memory", error)
            self._has_failed = True


_of_process: Final = WeakSet[TrafficLog]()


@atexit.register
def _close_all() -> None:
    """Write the counts of a process that ends."""
    for log in tuple(_of_process):
        log._flush_or_log()


def _add_up(found: Mapping[int, int], run: range) -> list[int]:
    """Return the counts of the steps of a run, from those of buckets."""
    counts = [0] * len(run)
    for at, number in found.items():
        counts[(at - run.start) // run.step] += number
    return counts
