"""``RedisCounts``: a traffic log in Redis. Each bucket has a hash with the counts of events, and one for each event.

A script adds a part of a batch. It runs in a few milliseconds, and counts a part once, however often it is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..stores.redis.address import Address
from ..stores.redis.client.errors import as_store_error
from .address import LogAddress
from .batch import MOST, OTHER, Batch, EventCounts
from .retention import Retention, Run
from .store import CountStore

_TIMEOUT: Final = 5.0
"""Seconds that a call may wait for the server."""
_PART: Final = 1_000
"""The most counts of one call of the script, for which the server takes about 2 ms."""
_READS: Final = 500
"""The most reads of one round trip."""
_Part = list[tuple[int, int, int, dict[str, tuple[int, dict[str, int]]]]]


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

    def write(self, batch: Batch, token: str, now: int) -> None:
        kept = self._retention.longest.kept
        with self._errors():
            for number, part in enumerate(self._parts(batch, now)):
                counts = msgspec.msgpack.encode(part)
                arguments = (f"{token}:{number}", MOST, OTHER, str(self._retention), kept, counts)
                self._script(keys=[self._prefix], args=arguments)

    def counts(self, run: Run, events: Sequence[str], client: str | None) -> dict[str, dict[int, int]]:
        keys, starts = self._keys([run]), range(run.start, run.end, run.step)
        if client is None:
            rows: Iterable[Sequence[Any]] = zip(*self._read("hmget", [(key, *events) for key in keys]), strict=True)
        else:
            rows = [self._read("hget", [(f"{key}:n:{event}", client) for key in keys]) for event in events]
        return {
            event: {start: int(reply) for start, reply in zip(starts, row, strict=True) if reply}
            for event, row in zip(events, rows, strict=True)
        }

    def clients(self, runs: Sequence[Run], event: str) -> dict[str, int]:
        return self._sums([(f"{key}:n:{event}",) for key in self._keys(runs)])

    def events(self, runs: Sequence[Run]) -> dict[str, int]:
        return self._sums([(key,) for key in self._keys(runs)])

    def distinct(self, runs: Sequence[Run], event: str) -> int:
        """Return the estimate of HyperLogLog, whose standard error is 0.81%. Its clients have no bound."""
        with self._errors():
            return int(self._client.pfcount(*(f"{key}:d:{event}" for key in self._keys(runs))))

    def retention(self) -> str | None:
        (found,) = self._read("get", [(f"{self._prefix}:retention",)])
        return None if found is None else found.decode()

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
                for total, clients in _pieces(counts):
                    if part and size + 1 + len(clients) > _PART:
                        yield part
                        part, size = [], 0
                    if not part or part[-1][:2] != (step, start):
                        part.append((step, start, seconds, {}))
                    part[-1][3][event] = total, clients
                    size += 1 + len(clients)
        if part:
            yield part

    def _keys(self, runs: Sequence[Run]) -> list[str]:
        return [f"{self._prefix}:{run.step}:{start}" for run in runs for start in range(run.start, run.end, run.step)]

    def _sums(self, calls: Sequence[tuple[str, ...]]) -> dict[str, int]:
        total = Counter[str]()
        for reply in self._read("hgetall", calls):
            total.update({name.decode(): int(number) for name, number in reply.items()})
        return total

    def _read(self, command: str, calls: Sequence[tuple[str, ...]]) -> list[Any]:
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


def _pieces(counts: EventCounts) -> Iterator[tuple[int, dict[str, int]]]:
    """Divide the clients of an event: the largest come first. The first piece has the total."""
    clients = sorted(counts.clients.items(), key=lambda each: -each[1])
    for first in range(0, len(clients) or 1, _PART - 1):
        yield (0 if first else counts.total), dict(clients[first : first + _PART - 1])


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
