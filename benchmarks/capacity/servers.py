"""The counters of the servers of a store, and of the calls to them, read over the connections of the store."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.wire import Flight, LoopConnection

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
        self._router = store._thread_driver.connections
        self.is_cluster = len(self._router.map.owners) > 1
        self._messages = self._commands = 0
        post = LoopConnection.post

        def count(connection: LoopConnection, frame: bytes, flight: Flight) -> None:
            self._messages += 1
            self._commands += flight.expected
            post(connection, frame, flight)

        LoopConnection.post = count  # type: ignore[method-assign]

    def _ask(self, location: Any, *command: Any) -> Any:
        return run_blocking(self._router.command(location, self._router.clock.now + self._budget, *command))

    def memory(self, keys: Sequence[str]) -> float:
        """Return the mean bytes of the states of keys."""
        placed = [self._store._locate_key(key) for key in keys]
        owners = self._router.map.owners
        return statistics.mean(self._ask(owners[slot], b"MEMORY", b"USAGE", name) or 0 for name, slot in placed)

    def info(self) -> list[dict[str, float]]:
        """Return the numbers in INFO of each primary."""
        texts = [
            b"\n".join(self._ask(each, b"INFO", section) for section in _SECTIONS).decode()
            for each in self._router.map.primaries
        ]
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
