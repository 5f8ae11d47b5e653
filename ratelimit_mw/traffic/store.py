"""``CountStore``: the interface of the stores of a traffic log, the one in memory, and the URLs of all."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from ..errors import ConfigError, MissingExtraError, suggestion
from ..runtime.forksafe import create_lock
from ..stores.url import check_store_url, family_of
from .counts import Batch, EventCounts, Events, add_events, drop_expired, merged
from .retention import DEFAULT, Retention

_FAMILIES: Final = ("memory", "sqlite", "redis")


class CountStore(ABC):
    """Keeps counts by bucket, event and client. Several processes may add to the same buckets.

    Each method may wait for the store, and raises ``StoreError`` when it fails.
    """

    @abstractmethod
    def write(self, batch: Batch, token: str, now: int) -> str | None:
        """Add the counts of a batch, and drop buckets that are no longer kept.

        If the log has another retention, nothing is written, and the retention of the log is returned.

        A batch that failed is written again with the same token until it succeeds, and counts once.
        """

    @abstractmethod
    def totals(self, run: range, events: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return the counts of each event by the start of the bucket, without zeros."""

    @abstractmethod
    def clients(self, run: range, event: str) -> dict[int, EventCounts]:
        """Return the clients of an event by the start of the bucket."""

    @abstractmethod
    def events(self, run: range) -> dict[str, int]:
        """Return the counts of all events."""

    @abstractmethod
    def retention(self) -> str | None:
        """Return the retention of the log; None when there is no log yet."""

    def close(self) -> None:  # noqa: B027 - a store may have nothing to close
        """Close the connections."""


class MemoryCounts(CountStore):
    """Keeps counts in memory. A forked child starts with those of its parent."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._buckets: Batch = {}
        self._lock = create_lock(self, "_lock", threading.Lock)

    def write(self, batch: Batch, token: str, now: int) -> None:
        with self._lock:
            for bucket, events in batch.items():
                add_events(self._buckets.setdefault(bucket, {}), events)
            drop_expired(self._buckets, now)

    def totals(self, run: range, events: Sequence[str]) -> dict[str, dict[int, int]]:
        with self._lock:
            found = self._in(run).items()
            return {event: {start: each[event].total for start, each in found if event in each} for event in events}

    def clients(self, run: range, event: str) -> dict[int, EventCounts]:
        with self._lock:
            return {start: merged([each[event]]) for start, each in self._in(run).items() if event in each}

    def events(self, run: range) -> dict[str, int]:
        found = Counter[str]()
        with self._lock:
            for each in self._in(run).values():
                found.update({event: counts.total for event, counts in each.items()})
        return found

    def retention(self) -> str:
        return str(self._retention)

    def _in(self, run: range) -> dict[int, Events]:
        """Return the buckets of a run by their start. The caller holds the lock."""
        items = self._buckets.items()
        return {start: events for (resolution, start), events in items if resolution.step == run.step and start in run}


class LogAddress(NamedTuple):
    """The parts of a URL. ``target`` is the absolute path of a file, or what the store of the scheme has parsed."""

    family: str
    target: Any
    retention: Retention


def parse_log_url(url: str, retention: str | None = None) -> LogAddress:
    """Return the parts of a URL. ``retention`` is that of an argument.

    Raises:
        ConfigError: The URL has no store of traffic logs, or its retention is invalid.
    """
    scheme, separator, _ = str(url).partition("://")
    if not separator:  # the text may have a login
        raise ConfigError('expected the URL of a traffic log, for example "sqlite:///traffic.db"')
    family = scheme if scheme == "sqlite" else family_of(scheme)
    if family not in _FAMILIES:
        raise ConfigError(f"a traffic log cannot use the scheme {scheme!r}{suggestion(scheme, _FAMILIES)}")
    rest, found = without_retention(url)
    if found is not None and retention is not None:
        raise ConfigError("retention is set both in the URL and as an argument. Set it once")
    chosen = found if retention is None else retention
    target = _path_of(rest) if family == "sqlite" else check_store_url(rest)[1]
    return LogAddress(family, target, Retention(DEFAULT if chosen is None else chosen))


def without_retention(url: str) -> tuple[str, str | None]:
    """Return a URL without its option ``retention``, and that option."""
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    found = [value for name, value in options if name == "retention"]
    if not found:
        return url, None
    if len(found) > 1:
        raise ConfigError("the URL of a traffic log has the option 'retention' twice")
    rest = "&".join(f"{quote(name)}={quote(value)}" for name, value in options if name != "retention")
    return f"{base}?{rest}" if rest else base, found[0]


def _path_of(url: str) -> str:
    path = unquote(url.removeprefix("sqlite://"))
    if not path.startswith("/") or path.endswith(("/", "/:memory:")) or "\0" in path or "?" in url or "#" in url:
        raise ConfigError(
            "sqlite:// needs the path of a file, and takes only the option retention: sqlite:///traffic.db, or"
            " sqlite:////var/lib/app/traffic.db for an absolute path. For a log in memory, write memory://"
        )
    return os.path.abspath(path[1:])  # noqa: PTH100 - Path.absolute keeps ".."


def open_counts(address: LogAddress) -> CountStore:
    """Open the store of a URL. It connects when it is first used."""
    _, target, retention = address
    if address.family == "memory":
        return MemoryCounts(retention)
    if address.family == "sqlite":
        from .sqlite import SqliteCounts

        return SqliteCounts(target, retention)
    try:
        from .redis import RedisCounts
    except ModuleNotFoundError as error:
        raise MissingExtraError("a traffic log in redis", "redis") from error
    return RedisCounts(target, retention)
