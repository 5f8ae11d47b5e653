"""The counters of the servers of a store, and of the calls to them, read over the connections of the store."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis import ResponseError

from ...stores.redis.client.cluster import Cluster, slot_of
from ...stores.redis.client.connection import run_blocking
from ...stores.redis.client.server import call
from ...stores.redis.store import RedisStore
from ..output import Failure

_NUMBER: Final = re.compile(r"^(\w+):([\d.]+)\r?$", re.MULTILINE)
_SECTIONS: Final = ("cpu", "stats", "clients", "replication")


class Sample(NamedTuple):
    """Totals until now, or between two moments. Times are in seconds. The other fields are counts or bytes."""

    wall: float
    client: float
    server: float
    sent: float
    received: float
    replicated: float
    messages: float
    commands: float

    def __sub__(self, other: Sample) -> Sample:
        return Sample(*(a - b for a, b in zip(self, other, strict=True)))


class Servers:
    """The primaries of a store, and the calls of its event loop. It must run on that loop."""

    def __init__(self, store: RedisStore, budget: float) -> None:
        self._store = store
        self._target: Any = store._blocking.target
        self._budget = budget
        self.messages = self.commands = 0
        self._count_calls(store._callers.get().target)

    @property
    def is_cluster(self) -> bool:
        return isinstance(self._target, Cluster)

    def ask_all(self, *words: str) -> list[Any]:
        """Return the reply of each primary."""
        target = self._target
        pools = [target._pool(each) for each in target._slots._primaries] if self.is_cluster else [target._pool]
        return [self._ask(pool, *(word.encode() for word in words)) for pool in pools]

    def _ask(self, pool: Any, *command: bytes) -> Any:
        try:
            return run_blocking(call(pool, command, time.monotonic() + self._budget))
        except ResponseError as error:
            raise Failure(
                f"the server rejects {command[0].decode()}: {error}. Give the user of the store the rights +info and"
                " +memory|usage, or leave out --measure"
            ) from error

    def memory(self, keys: Sequence[str]) -> float:
        """Return the mean bytes of the states of keys."""
        sizes = []
        for name in map(self._store._name, keys):
            target = self._target
            pool = target._pool(target.owners[slot_of(name)]) if self.is_cluster else target._pool
            sizes.append(self._ask(pool, b"MEMORY", b"USAGE", name) or 0)
        return statistics.mean(sizes)

    def info(self) -> list[dict[str, float]]:
        """Return the numbers in INFO of each primary."""
        replies = [b"\n".join(parts) for parts in zip(*(self.ask_all("INFO", each) for each in _SECTIONS), strict=True)]
        return [{name: float(number) for name, number in _NUMBER.findall(reply.decode())} for reply in replies]

    def sample(self) -> Sample:
        infos = self.info()

        def total(*names: str) -> float:
            return sum(info.get(name, 0.0) for info in infos for name in names)

        copied = total("total_net_repl_output_bytes")
        return Sample(
            time.perf_counter(),
            time.process_time(),
            total("used_cpu_user", "used_cpu_sys"),
            total("total_net_input_bytes") - total("total_net_repl_input_bytes"),
            total("total_net_output_bytes") - copied,
            copied,
            self.messages,
            self.commands,
        )

    def _count_calls(self, target: Any) -> None:
        """Count the messages of the event loop and the commands in them."""
        ask, ask_each = target.ask, target.ask_each

        def counted(message: Any, deadline: float) -> Any:
            self.messages += 1
            self.commands += 1
            return ask(message, deadline)

        def counted_each(messages: Sequence[Any], deadline: float) -> Any:
            self.messages += 1
            self.commands += len(messages)
            return ask_each(messages, deadline)

        if self.is_cluster:
            target.ask_each = counted_each  # ``ask`` calls it
        else:
            target.ask = counted
