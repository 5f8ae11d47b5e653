"""The counters of the servers of a store, and of the calls to them, read over the connections of the store."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ratelimit_mw.stores.blocking import run_blocking
from ratelimit_mw.stores.redis.client.cluster import Cluster, slot_of
from ratelimit_mw.stores.redis.client.transport import call
from ratelimit_mw.stores.redis.store import RedisStore

_NUMBER: Final = re.compile(r"^(\w+):([\d.]+)\r?$", re.MULTILINE)
_SECTIONS: Final = (b"cpu", b"stats", b"clients", b"replication")

Totals = dict[str, float]
"""Microseconds, counts or bytes, until now or between two moments."""


def subtract(totals: Totals, earlier: Totals) -> Totals:
    return {name: total - earlier[name] for name, total in totals.items()}


class Servers:
    """The primaries of a store, and the calls of its event loop. It must run on that loop."""

    def __init__(self, store: RedisStore, budget: float) -> None:
        self._store, self._budget = store, budget
        self._target: Any = store._blocking.target
        self.is_cluster = isinstance(self._target, Cluster)
        self._messages = self._commands = 0
        target = store._callers.get().target
        self._count_calls(target, "ask_each", len)
        if not self.is_cluster:  # whose ``ask`` calls it
            self._count_calls(target, "ask", lambda _: 1)

    def _count_calls(self, target: Any, name: str, commands_of: Callable[[Any], int]) -> None:
        """Count the messages of the event loop and the commands in them."""
        ask = getattr(target, name)

        def counted(message: Any, deadline: float) -> Any:
            self._messages += 1
            self._commands += commands_of(message)
            return ask(message, deadline)

        setattr(target, name, counted)

    def _ask(self, pool: Any, *command: bytes) -> Any:
        return run_blocking(call(pool, command, self._store._clock.now + self._budget))

    def memory(self, keys: Sequence[str]) -> float:
        """Return the mean bytes of the states of keys."""
        target, names = self._target, [self._store._name(key) for key in keys]
        pools = [target._pool(target.owners[slot_of(name)]) if self.is_cluster else target._pool for name in names]
        usage = [self._ask(pool, b"MEMORY", b"USAGE", name) for pool, name in zip(pools, names, strict=True)]
        return statistics.mean(each or 0 for each in usage)

    def info(self) -> list[dict[str, float]]:
        """Return the numbers in INFO of each primary."""
        target = self._target
        pools = [target._pool(each) for each in target._slots.primaries] if self.is_cluster else [target._pool]
        texts = [b"\n".join(self._ask(pool, b"INFO", section) for section in _SECTIONS).decode() for pool in pools]
        return [{name: float(number) for name, number in _NUMBER.findall(text)} for text in texts]

    def totals(self) -> Totals:
        infos = self.info()

        def total(*names: str) -> float:
            return sum(info.get(name, 0.0) for info in infos for name in names)

        return {
            "wall": time.perf_counter() * 1e6,
            "client": time.process_time() * 1e6,
            "server": total("used_cpu_user", "used_cpu_sys") * 1e6,
            "sent": total("total_net_input_bytes") - total("total_net_repl_input_bytes"),
            "received": total("total_net_output_bytes") - total("total_net_repl_output_bytes"),
            "message": self._messages,
            "command": self._commands,
        }
