"""``RedisCounts``: a traffic log in Redis. Each bucket has a hash with the counts of events, and one for each event.

A script adds a part of a batch. It runs in a few milliseconds, and counts a part once, however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from typing import Any, Final, TypeVar

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..errors import StoreError
from ..stores.redis.address import Address
from ..stores.redis.client.errors import as_store_error
from .address import LogAddress
from .batch import MOST, OTHER, Batch, EventCounts, add_counts, add_up_events
from .count_min import COLUMNS, cells_of
from .digest import create_salt
from .estimate import Estimate
from .hyperloglog import with_error
from .retention import Retention, Run
from .store import CountStore

_TIMEOUT: Final = 5.0
"""Seconds that a call may wait for the server."""
_PART: Final = 1_000
"""The maximum number of counts in one call of the script, for which the server takes about 2 ms."""
_READS: Final = 500
"""The maximum number of reads in one round trip."""
_STANDARD_ERROR: Final = 0.0081
"""The standard error of the HyperLogLog in Redis."""
_Field = TypeVar("_Field", int, str)
_Part = list[tuple[int, int, int, dict[str, tuple[int, dict[str, int], int, int]]]]


class RedisCounts(CountStore):
    """Keeps counts on a server, which the processes of all machines share."""

    def __init__(self, address: Address, retention: Retention) -> None:
        self._address = address
        self._retention = retention
        self._prefix = f"{address.prefix}{{traffic}}"

    @cached_property
    def _client(self) -> Any:
        return open_client(self._address)

    @cached_property
    def _script(self) -> Any:
        text = files(__package__).joinpath("write.lua").read_text("utf-8")
        return self._client.register_script(text)

    def write(self, batch: Batch, token: str, now: int) -> str | None:
        longest = self._retention.longest
        kept = longest.kept + 2 * longest.step  # as that of its buckets
        with self._errors():
            for number, part in enumerate(self._parts(batch, now)):
                counts = msgspec.msgpack.encode(part)
                log = (MOST, OTHER, str(self._retention), kept)
                arguments = (f"{token}:{number}", *log, counts, create_salt(), COLUMNS)
                if isinstance(found := self._script(keys=[self._prefix], args=arguments), bytes):
                    with self._decoding():
                        return str(found, "utf-8")
        return None

    def totals(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        rows = self._numbers(run, "", events)
        return {event: {start: row[event] for start, row in rows.items() if event in row} for event in events}

    def least_cells(self, run: Run, events: Sequence[str]) -> dict[str, dict[int, int]]:
        cells = {event: cells_of(event, self._text("salt") or "") for event in events}
        rows = self._numbers(run, ":c", list({cell for own in cells.values() for cell in own}))
        return {
            event: {start: min(row[cell] for cell in own) for start, row in rows.items() if row.keys() >= {*own}}
            for event, own in cells.items()
        }

    def tables(self, run: Run, event: str, clients: Sequence[str]) -> dict[int, EventCounts]:
        counts = self._numbers(run, f":n:{event}", clients)
        errors = self._numbers(run, ":e", [event])
        return {
            start: EventCounts(0, counts.get(start, {}), errors.get(start, {}).get(event, 0))
            for start in counts.keys() | errors.keys()
        }

    def clients(self, runs: Sequence[Run], event: str) -> EventCounts:
        found = EventCounts(error=self._sum(runs, ":e", event))
        for clients in self._hashes([f"{key}:n:{event}" for key in self._keys(runs)]):
            add_counts(found.clients, clients)
        return found

    def distinct(self, runs: Sequence[Run], event: str) -> Estimate:
        """Return the number of clients. If some were dropped, it is the estimate of the server's HyperLogLog."""
        if not self._sum(runs, ":e", event):
            return super().distinct(runs, event)
        with self._errors():
            found = int(self._client.pfcount(*(f"{key}:d:{event}" for key in self._keys(runs))))
        estimate = with_error(found, _STANDARD_ERROR)
        return Estimate(found, estimate.error + self._sum(runs, ":m", event))

    def events(self, runs: Sequence[Run]) -> dict[str, Estimate]:
        return add_up_events(self._hashes(self._keys(runs)))

    def retention(self) -> str | None:
        return self._text("retention")

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def _parts(self, batch: Batch, now: int) -> Iterator[_Part]:
        """Divide a batch into calls of the script, always in the same way for the same batch."""
        kept = {each.step: each.kept for each in self._retention.resolutions}
        part: _Part = []
        size = 0
        for (step, start), events in batch.items():
            seconds = start + 2 * step + kept[step] - now
            for event, counts in events.items():
                for piece in _pieces(counts):
                    added = 1 + len(piece[1])
                    if part and size + added > _PART:
                        yield part
                        part, size = [], 0
                    if not part or part[-1][:2] != (step, start):
                        part.append((step, start, seconds, {}))
                    part[-1][3][event] = piece
                    size += added
        if part:
            yield part

    def _keys(self, runs: Sequence[Run]) -> list[str]:
        return [f"{self._prefix}:{run.step}:{start}" for run in runs for start in range(run.start, run.end, run.step)]

    def _sum(self, runs: Sequence[Run], suffix: str, field: str) -> int:
        """Return the sum of one field of a hash of each bucket."""
        return sum(row[field] for run in runs for row in self._numbers(run, suffix, [field]).values())

    def _numbers(self, run: Run, suffix: str, fields: Sequence[_Field]) -> dict[int, dict[_Field, int]]:
        """Return fields of one hash of each bucket, by its start. Missing fields and hashes are left out."""
        replies = self._read("hmget", [(f"{key}{suffix}", fields) for key in self._keys([run])])
        found = {}
        with self._decoding():
            for start, row in zip(range(run.start, run.end, run.step), replies, strict=True):
                if numbers := {field: int(reply) for field, reply in zip(fields, row, strict=True) if reply}:
                    found[start] = numbers
        return found

    def _hashes(self, keys: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield the numbers of whole hashes."""
        for reply in self._read("hgetall", [(key,) for key in keys]):
            with self._decoding():
                numbers = {name.decode(): int(number) for name, number in reply.items()}
            yield numbers

    def _text(self, name: str) -> str | None:
        """Return a text of the log; None when there is no log yet."""
        (found,) = self._read("get", [(f"{self._prefix}:{name}",)])
        with self._decoding():
            return None if found is None else str(found, "utf-8")

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Raise ``StoreError`` for bytes that no log has written."""
        try:
            yield
        except ValueError as error:
            damage = f"a key that starts with {self._prefix} is damaged ({error})"
            raise StoreError(f"{damage}. To start a new log, delete these keys, or name another prefix") from error

    def _read(self, command: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the reply to each call of a command, many in one round trip."""
        replies: list[Any] = []
        with self._errors():
            for first in range(0, len(calls), _READS):
                pipeline = self._client.pipeline(transaction=False)
                for arguments in calls[first : first + _READS]:
                    getattr(pipeline, command)(*arguments)
                replies += pipeline.execute()
        return replies

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise as_store_error(error) from error


def _pieces(counts: EventCounts) -> Iterator[tuple[int, dict[str, int], int, int]]:
    """Divide the clients of an event: the largest come first. The first piece has the other figures."""
    clients = sorted(counts.clients.items(), key=lambda each: -each[1])
    for first in range(0, len(clients) or 1, _PART - 1):
        total, error, missed = (0, 0, 0) if first else (counts.total, counts.error, counts.missed)
        yield total, dict(clients[first : first + _PART - 1]), error, missed


def open_client(address: Address) -> Any:
    """Return a client of redis-py for the servers of a URL. It connects when it is first used, and after a fork."""
    login = {"username": address.username, "password": address.password}
    options: dict[str, Any] = {
        **login,
        "db": address.db,
        "client_name": address.client_name,
        "protocol": address.protocol,
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 1),  # the server may have closed the connection
    }
    if address.tls_options is not None:
        options |= {"ssl": True, **address.tls_options}
    if address.cluster:
        nodes = [ClusterNode(*host) for host in address.hosts]  # type: ignore[no-untyped-call]
        del options["db"]
        return redis.RedisCluster(startup_nodes=nodes, address_remap=lambda found: address.locate(*found), **options)
    if address.service:
        sentinels = address.sentinels
        own = {**options, "db": 0, "username": sentinels.username, "password": sentinels.password}
        sentinel = Sentinel(address.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
        return sentinel.master_for(address.service, **options)  # type: ignore[no-untyped-call]
    if address.path:
        return redis.Redis(unix_socket_path=address.path, **options)
    host, port = address.hosts[0]
    return redis.Redis(host, port, **options)


def open_address(address: LogAddress) -> RedisCounts:
    return RedisCounts(address.place, address.retention)  # type: ignore[arg-type]
