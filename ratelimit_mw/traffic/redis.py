"""``RedisCounts``: a traffic log in Redis. A bucket has a hash of its events, and a list of clients for each event.

A batch is written in parts. Each is one transaction, which also sets the token of the part. The transaction watches the
token, so a part that is sent again after a lost reply counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import RedisClusterException  # no RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ..errors import StoreError
from ..stores.redis.address import Address
from ..stores.redis.errors import as_store_error
from .counts import MAX_EVENTS, Batch, EventCounts, clients_of, fit_events
from .retention import Resolution, Retention
from .store import CountStore

_TIMEOUT: Final = 5.0
"""Seconds that a call may wait for the server."""
_PART: Final = 20_000
"""The number of counts in one transaction, for which the server takes less than 1 ms."""
_READS: Final = 500
"""The maximum number of reads in one round trip."""
_TOKEN_LIFE: Final = 86_400
"""Seconds after which a part that is sent again would count again."""
_Value = TypeVar("_Value")


class RedisCounts(CountStore):
    """Keeps counts on a server, which the processes of all machines share. All keys have one hash tag."""

    def __init__(self, address: Address, retention: Retention) -> None:
        self._address = address
        self._retention = retention
        self._prefix = f"{address.prefix}{{traffic}}"
        self._log = f"{self._prefix}:retention"

    @cached_property
    def _client(self) -> Any:
        """The client of the server that has the keys."""
        client = open_client(self._address)
        if isinstance(client, redis.RedisCluster):
            return client.get_redis_connection(client.get_node_from_key(self._prefix))  # type: ignore[no-untyped-call]
        return client

    def write(self, batch: Batch, token: str, now: int) -> str | None:
        for number, part in enumerate(_parts(batch)):
            add = partial(self._add, self._fitting(part), f"{self._prefix}:written:{token}:{number}", now)
            with self._errors():  # if another process changes a watched key, ``add`` is called again
                retention: str | None = self._client.transaction(add, value_from_callable=True)
            if retention is not None:
                return retention
        return None

    def totals(self, run: range, events: Sequence[str]) -> dict[str, dict[int, int]]:
        rows = self._of_run(run, "hmget", "", events, parse=lambda row: [int(each or 0) for each in row])
        return {event: {start: row[i] for start, row in rows.items() if row[i]} for i, event in enumerate(events)}

    def clients(self, run: range, event: str) -> dict[int, EventCounts]:
        return self._of_run(run, "get", f":{event}", parse=clients_of)

    def events(self, run: range) -> dict[str, int]:
        found = Counter[str]()
        for counts in self._of_run(run, "hgetall", "", parse=_counts).values():
            found.update(counts)
        return found

    def retention(self) -> str | None:
        return self._read([("get", self._log)], lambda text: None if text is None else str(text, "utf-8"))[0]

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def _fitting(self, part: Batch) -> Batch:
        """Return a part whose events have room in their buckets."""
        sizes = self._read([("hlen", self._key(*bucket)) for bucket in part], int)
        fitting: Batch = {}
        for (bucket, events), size in zip(part.items(), sizes, strict=True):
            if size + len(events) > MAX_EVENTS:
                known = self._read([("hkeys", self._key(*bucket))], lambda names: {each.decode() for each in names})[0]
                events = dict(fit_events(events, known, MAX_EVENTS))
            fitting[bucket] = events
        return fitting

    def _add(self, part: Batch, token: str, now: int, calls: Any) -> str | None:
        """Add a part, unless that is done. Return the retention of the log if it is another one."""
        every = [
            (self._key(*bucket), seconds, event, counts)
            for bucket, events in part.items()
            if (seconds := bucket[0].end_of(bucket[1]) - now) > 0  # an outage may have been longer
            for event, counts in events.items()
        ]
        lists = [f"{key}:{event}" for key, _, event, counts in every if counts.has_clients]
        calls.watch(token, *lists)
        is_written, retention, *found = calls.mget(token, self._log, *lists)
        calls.multi()
        if retention is not None and (of_log := str(retention, "utf-8")) != str(self._retention):
            return of_log
        if is_written:
            return None
        known = dict(zip(lists, found, strict=True))
        for key, seconds, event, counts in every:
            calls.hincrby(key, event, counts.total)
            calls.expire(key, seconds)
            if counts.has_clients:
                calls.set(f"{key}:{event}", counts.clients_added_to(known[f"{key}:{event}"]), ex=seconds)
        calls.set(self._log, str(self._retention), ex=self._retention.longest.end_of(0))
        calls.set(token, 1, ex=_TOKEN_LIFE)
        return None

    def _key(self, resolution: Resolution, start: int) -> str:
        return f"{self._prefix}:{resolution.step}:{start}"

    def _of_run(
        self, run: range, command: str, suffix: str, *arguments: object, parse: Callable[[Any], _Value]
    ) -> dict[int, _Value]:
        """Return the value of a key of each bucket, by its start. Missing ones are left out."""
        calls = [(command, f"{self._prefix}:{run.step}:{start}{suffix}", *arguments) for start in run]
        replies = self._read(calls, lambda reply: parse(reply) if reply else None)
        return {start: reply for start, reply in zip(run, replies, strict=True) if reply is not None}

    def _read(self, calls: Sequence[tuple[Any, ...]], parse: Callable[[Any], _Value]) -> list[_Value]:
        """Return the reply to each call, many in one round trip."""
        replies: list[_Value] = []
        with self._errors():
            for first in range(0, len(calls), _READS):
                pipeline = self._client.pipeline(transaction=False)
                for command, *arguments in calls[first : first + _READS]:
                    getattr(pipeline, command)(*arguments)
                replies += map(parse, pipeline.execute())
        return replies

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise ``StoreError`` for an error of the server, and for bytes that no log has written."""
        try:
            yield
        except (redis.RedisError, RedisClusterException, OSError) as error:
            self.__dict__.pop("_client", None)  # the keys may be on another server now
            raise as_store_error(error) from error
        except ValueError as error:
            damage = f"a key that starts with {self._prefix} is damaged ({error})"
            raise StoreError(f"{damage}. To start a new log, delete these keys, or name another prefix") from error


def _parts(batch: Batch) -> Iterator[Batch]:
    """Divide a batch into parts, always in the same way for the same batch."""
    part, size = Batch(), 0
    for bucket, events in batch.items():
        for event, counts in events.items():
            part.setdefault(bucket, {})[event] = counts
            size += counts.size
            if size >= _PART:
                yield part
                part, size = {}, 0
    yield part


def _counts(reply: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(number) for name, number in reply.items()}


def open_client(address: Address) -> Any:
    """Return a client of redis-py for the servers of a URL. It connects when it is first used, and after a fork."""
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "db": address.db,
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "retry": Retry(NoBackoff(), 1),  # the server may have closed the connection
    }
    if address.tls_options is not None:
        options |= {"ssl": True, **address.tls_options}
    if address.cluster:
        nodes = [ClusterNode(*host) for host in address.hosts]  # type: ignore[no-untyped-call]
        del options["db"]
        return redis.RedisCluster(startup_nodes=nodes, **options)
    if address.service:
        sentinels = address.sentinels
        own = {**options, "db": 0, "username": sentinels.username, "password": sentinels.password}
        sentinel = Sentinel(address.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
        return sentinel.master_for(address.service, **options)  # type: ignore[no-untyped-call]
    host, port = address.hosts[0]
    return redis.Redis(host, port, **options) if port else redis.Redis(unix_socket_path=host, **options)
