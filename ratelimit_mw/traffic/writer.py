"""``CountWriter``: the part of a ``TrafficLog`` that records events, and writes their counts."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from ..clock import SECOND, Clock, checked_clock, fast_clock, machine, now_us
from ..errors import ConfigError, RateLimitError, StoreError
from ..forksafe import CHANCE, check_process, create_lock
from ..heartbeat import Heartbeat
from ..quota import MAX_AMOUNT
from ..stores.url import redacted_url
from .address import parse_log_url
from .counts import Batch
from .pending import PendingCounts, name_of
from .store import open_counts

INTERVAL: Final = 15.0
"""Seconds from one write of a process to the next."""
_ONE: Final = 1
_log = logging.getLogger("ratelimit_mw")


class CountWriter:
    """Records events. ``TrafficLog`` inherits it."""

    def __init__(self, url: str, retention: str | None = None, clock: Clock = now_us) -> None:
        address = parse_log_url(url, retention)
        self.name = redacted_url(url)
        self._retention, self._of_clients = address.retention, address.retention.of_clients()
        self._clock = checked_clock(clock)
        self._fast_clock, self._edge = fast_clock(clock)
        # Before a fork, locks are taken in the order of their creation, which is that of their use.
        self._writing = create_lock(self, "_writing", threading.Lock)
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._beat = Heartbeat(CountWriter._flush_due, INTERVAL, "write the traffic log", "it is written at exit")
        self._store = open_counts(address)
        self._is_abandoned = False
        self._start_over()
        if address.family == "sqlite":  # a server may be unreachable, so its log is checked when it is first used
            with suppress(StoreError):  # so is a damaged file, or one that is locked
                self._require_same_log()
        if not _of_process:
            atexit.register(_close_all)
        _of_process.add(self)

    def _start_over(self) -> None:
        """Drop all counts. A forked child does so, because the parent writes its own counts."""
        self._pending = PendingCounts(self._retention, self._edge)
        self._unwritten: tuple[Batch, str] | None = None
        self._is_same_log = self._has_failed = False

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
                start, end, counts = self._pending.current
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
                start, end, counts = self._pending.current
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

    def abandon(self) -> None:
        """End the thread after its next write, even if that fails: the application is gone.

        A finalizer may call this, because it takes no lock.
        """
        self._is_abandoned = True

    def _now(self) -> int:
        return self._clock() // SECOND

    def _add(self, event: str | tuple[str, ...], by: str | None, number: int, time: int) -> None:
        check_process()
        with self._lock:
            self._pending.add(event, by, number, time, self._now())
            self._beat.hold(self)

    def _checked_time(self, at: object) -> int:
        """Return a time in microseconds. One that the log does not keep would be lost, or would stay for too long.

        The time of the caller is that of the wall clock, which a pause of the machine puts ahead of ``now_us``.
        """
        now = self._now()
        wall = machine.time_ns() // 10**9 if self._clock is now_us else now
        oldest, latest = now - self._retention.longest.kept, max(now, wall) + self._retention.finest.step
        if not isinstance(at, int | float) or type(at) is bool or not oldest < at <= latest:
            raise ConfigError(f"expected a time from {oldest} to {latest}, in seconds since 1970; got {at!r}", "at")
        return int(at * SECOND)

    def _next_batch(self) -> tuple[Batch, str] | None:
        """Return the batch to write: the one whose write failed, or the counts since then."""
        if self._unwritten is None:
            with self._lock:
                build = self._pending.take()
            if batch := build(self._now()):
                self._unwritten = batch, f"{CHANCE.getrandbits(64):x}"
        return self._unwritten

    def _require_same_log(self) -> None:
        """Raise ``ConfigError`` if the log has another retention: its buckets would mean other times."""
        if not self._is_same_log:
            found = self._store.retention()
            self._require_same(found)
            self._is_same_log = found is not None

    def _require_same(self, found: str | None) -> None:
        if found not in (None, str(self._retention)):
            message = f'{self.name} has the retention "{found}"; got "{self._retention}"'
            raise ConfigError(f"{message}. Use that of the log, or start a new log")

    def _flush_due(self) -> None:
        """Write the counts, at an interval. The thread ends when there are none, or when the log is abandoned."""
        is_last = self._is_abandoned
        try:
            self._flush_or_log()
        finally:
            with self._lock:
                if is_last or (self._pending.is_empty and self._unwritten is None):
                    self._beat.release(self)

    def _flush_or_log(self) -> None:
        try:
            self.flush()
        except RateLimitError as error:
            if not self._has_failed:
                effect = "are lost" if self._is_abandoned else "wait in memory"
                _log.warning("the traffic log is not written (%s). Its counts %s", error, effect)
            self._has_failed = True


_of_process: Final = WeakSet[CountWriter]()


def _close_all() -> None:
    """Write the counts of a process that ends."""
    for log in tuple(_of_process):
        log._flush_or_log()
