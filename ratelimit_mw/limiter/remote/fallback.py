"""``Fallback`` decides while a store is unreachable, by the ``on_store_error`` of each limit.

"local" counts in this process, "allow" leaves the limit out, and "deny" rejects with 503. Local counting starts from
the last decision of the store on a key. Each process has its share of the remaining quota, and of the whole quota after
the next reset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from ...clock import Clock
from ...decision import Decision, Hit, Limit, build_denial, count_hits
from ...runtime.forksafe import create_lock
from ...stores import MemoryStore
from .cache import LastDecisions
from .fleet import Fleet

_MAX_LIMITS: Final = 10_000
_log = logging.getLogger("ratelimit_mw")


class Fallback:
    """The decisions of this process without its store. It makes no calls.

    ``on_store_error`` is that of limits that have none of their own. At most ``max_keys`` keys are counted
    here, and as many last decisions of the store are remembered.
    """

    def __init__(self, name: str, on_store_error: str, max_keys: int, clock: Clock, fleet: Fleet) -> None:
        self._name = name
        self._on_store_error = on_store_error
        self._fleet = fleet
        self.local = MemoryStore(max_keys, clock)
        self.last = LastDecisions(max_keys)
        self.local_decisions = 0
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._local_limit = lru_cache(_MAX_LIMITS)(lambda limit, parts: limit.local_part(parts))
        self._is_warned = False

    def decide(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        with self._lock:
            self.local_decisions += count_hits(hits)
        local: list[Hit] = []
        denials: list[Decision] = []
        for hit in hits:
            action = hit.limit.on_store_error or self._on_store_error
            if action == "local":
                local.append(hit)
            elif action == "deny" and not hit.limit.shadow:
                denials.append(build_denial(hit, self.local.clock()))
        return denials or self._decide_here(local, now, consume)

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.last.pop(key)
        self.local.forget(keys)

    def _decide_here(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        size = self._fleet_size()
        local = [_local_hit(hit, self._local_limit(hit.limit, size)) for hit in hits]
        with self._lock:  # no other thread decides on a key before its last decision is carried over
            for hit, here in zip(hits, local, strict=True):
                if last := self.last.pop(hit.key):
                    last.carry_over(hit, here.limit, size, self.local, self.local.clock() if now is None else now)
        return self.local.apply(local, now, consume)

    def _fleet_size(self) -> int:
        size = self._fleet.size
        if not size and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "store %s was never reached, so the number of processes is not known and each allows the whole limit;"
                " set fleet_size",
                self._name,
            )
        return size or 1


def _local_hit(hit: Hit, limit: Limit) -> Hit:
    """Return the hit for local counting. A cost above the part of a process, but within the limit, takes the part."""
    is_held = limit.limit < hit.cost <= hit.limit.limit and not hit.limit.quota.concurrent
    return hit._replace(limit=limit, cost=limit.limit if is_held else hit.cost)
