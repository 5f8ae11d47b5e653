"""``CountWriter``: the part of a ``TrafficLog`` that records events in bounded memory, and writes their counts."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Final
from weakref import WeakSet

from ..clock import SECOND, Clock, checked_clock, fast_clock, now_us
from ..errors import ConfigError, RateLimitError, StoreError
from ..forksafe import CHANCE, check_process, create_lock
from ..heartbeat import Heartbeat
from ..quota import MAX_AMOUNT
from ..stores.url import redacted_url
from .counts import MOST_CLIENTS, Batch, Key, add_records, drop_expired
from .retention import DAY
from .store import open_counts, parse_log_url

INTERVAL: Final = 15.0
"""Seconds from one write of a process to the next."""
_ONE: Final = 1
_MOST_NEW: Final = 20_000
"""The maximum number of counts before they are added to the buckets of the log, which have bounds."""
_MOST: Final = 200_000
"""The maximum number of counts in buckets. Then the smallest clients go, and new events count together."""
_LONGEST, _DIGEST = 128, 16
"""The maximum length of a name, and the bytes of the digest that replaces the rest of a longer one."""
_log = logging.getLogger("ratelimit_mw")


class CountWriter:
    """Records events. ``TrafficLog`` inherits it."""

    def __init__(self, url: str, retention: str | None = None, clock: Clock = now_us) -> None:
        address = parse_log_url(url, retention)
        self.name = redacted_url(url)
        self.retention, self._of_clients = address.retention, address.retention.of_clients()
        self._clock = checked_clock(clock)
        self._fast_clock, self._edge = fast_clock(clock)
        # Before a fork, locks are taken in the order of their creation, which is that of their use.
        self._writing = create_lock(self, "_writing", threading.Lock)
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._beat = Heartbeat(CountWriter._flush_due, INTERVAL, "write the traffic log", "it is written at exit")
        self._store = open_counts(address)
        self._start_over()
        if address.family == "sqlite":  # a server may be unreachable, so its log is checked when it is first used
            with suppress(StoreError):  # so is a damaged file, or one that is locked
                self._require_same_log()
        if not _of_process:
            atexit.register(_close_all)
        _of_process.add(self)

    def _start_over(self) -> None:
        """Drop all counts. A forked child does so, because the parent writes its own counts."""
        self._batch: Batch = {}
        self._unwritten: tuple[Batch, str] | None = None
        self._is_same_log = self._has_failed = False
        self._start_records()

    def _start_records(self) -> None:
        """Start without counts that are in no batch yet.

        The current bucket is the one that ``record`` increments: its start and its end in the unit of the fast clock,
        and its counts.
        """
        self._records: dict[int, dict[Key, int]] = {}
        self._current: tuple[int, int, dict[Key, int]] = (0, 0, {})
        self._size = 0

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
            time = self._fast_clock()
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
        self._add(name_of("event", event), None if by is None else name_of("by", by), n, time)

    def counter_of(self, *events: str) -> Callable[[], None]:
        """Return a function that counts each of several events once, now and without a client.

        Args:
            *events: The events, as strings.

        Returns:
            The function. It is as fast for several events as for one.

        Raises:
            ConfigError: An event is not a string.
        """
        names, clock = tuple(name_of("events", event) for event in events), self._fast_clock
        key = names, None

        def count() -> None:
            time = clock()
            with self._lock:
                start, end, counts = self._current
                if start <= time < end and key in counts:
                    counts[key] += 1
                    return
            self._add(names, None, 1, self._clock())

        return count

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
                    self._require_same_log()
                    self._require_same(self._store.write(*batch, self._now()))
                    self._unwritten = None
        self._has_failed = False

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

    def _now(self) -> int:
        return self._clock() // SECOND

    def _add(self, event: str | tuple[str, ...], by: str | None, number: int, time: int) -> None:
        """Count a number for a time in microseconds. The next ``record`` for its bucket is one step."""
        check_process()
        key, step = (event, by), self.retention.finest.step * SECOND
        with self._lock:
            if self._size >= _MOST_NEW:
                self._shrink(self._now())
            start = time // step * step
            counts = self._records.setdefault(start // SECOND, {})
            self._size += key not in counts
            counts[key] = counts.get(key, 0) + number
            self._current = self._edge(start), self._edge(start + step), counts
            self._beat.hold(self)

    def _shrink(self, now: int) -> None:
        """Add the counts to the batch, which has at most about ``_MOST`` counts."""
        add_records(self._batch, self._records, self.retention, self._of_clients, now, self._is_full())
        self._start_records()
        drop_expired(self._batch, now)
        most = MOST_CLIENTS
        while most and self._is_full():
            most //= 2
            for events in self._batch.values():
                for counts in events.values():
                    counts.drop_clients(most)

    def _is_full(self) -> bool:
        return sum(counts.size for events in self._batch.values() for counts in events.values()) > _MOST

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
            add_records(batch, records, self.retention, self._of_clients, self._now())  # takes long
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


_of_process: Final = WeakSet[CountWriter]()


def _close_all() -> None:
    """Write the counts of a process that ends."""
    for log in tuple(_of_process):
        log._flush_or_log()


def name_of(argument: str, text: object, longest: int = _LONGEST) -> str:
    """Return an event or a client as stores have it: in UTF-8, and not too long. A digest replaces the rest."""
    if not isinstance(text, str) or not (text or argument == "by"):
        raise ConfigError(f"expected text; got {text!r}", argument)
    data = text.encode("utf-8", "surrogatepass")
    if len(text) <= longest and data.decode("utf-8", "replace") == text:
        return text
    start = text[: longest - 1 - 2 * _DIGEST].encode("utf-8", "replace").decode()
    return f"{start}\N{HORIZONTAL ELLIPSIS}{blake2b(data, digest_size=_DIGEST).hexdigest()}"
