"""Failover for a shared store that cannot be reached: ``BreakerStore`` stops asking it, ``FailoverStore`` decides.

By ``on_store_error`` "local" counts in this process, "allow" leaves the limit out, and "deny" rejects with 503.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from ..clock import SECOND, Clock, now_us
from ..decision import Decision, Hit
from ..errors import StoreError
from ..forksafe import create_lock
from ..receipt import Correction
from ..stores import MemoryStore, Store
from .link import ChainLink

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_MAX_FAILURES: Final = 3
_FIRST_PROBE: Final = SECOND // 4
_LAST_PROBE: Final = SECOND
_RETRY_DENIED: Final = SECOND
_log = logging.getLogger("ratelimit_mw")


class NotAskedError(StoreError):
    """The circuit breaker is open, so the store was not asked."""


class BreakerStore(ChainLink):
    """Asks a store while its circuit breaker is closed, and raises ``NotAskedError`` while the breaker is open.

    The breaker opens after three failures in a row. The first probe is due 0.25 s later; the interval doubles up to
    1 s. Each interval is shortened by up to a fifth at random, so that the processes of a fleet do not probe together.
    """

    def __init__(self, store: Store, policy: str) -> None:
        super().__init__(store)
        self._name = store.name or type(store).__name__
        self._policy = policy
        self._policies: dict[str, str] = {}
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._opened_at = self._probe_at = self._interval = 0
        self.open = False
        self.openings = 0  # how often the breaker has opened, for metrics
        self.failures = 0  # in a row so far
        # Changes with each failure that counts and each recovery. Note it before a call and pass it to
        # ``count_failure``: concurrent calls count as one failure, a call from before a recovery as none.
        self.epoch = 0

    def check(self, limit: Limit) -> None:
        self._policies[limit.rule] = limit.on_store_error or self._policy
        self.store.check(limit)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        with _Call(self):
            return self.store.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        with _Call(self):
            return await self.store.aapply(hits, now, consume)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            return self.store.correct(changes, now)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            return await self.store.acorrect(changes, now)

    def reject_call(self) -> None:
        """Raise ``NotAskedError``. When a probe is due, probe the store in a thread: an event loop may end first."""
        if self.takes_probe(now_us()):
            with suppress(RuntimeError):  # no thread can start now; the next interval tries again
                threading.Thread(target=self._probe, name="ratelimit_mw probe", daemon=True).start()
        raise NotAskedError(f"store {self._name} unreachable; the circuit breaker is open")

    def record_failure(self, error: StoreError, epoch: int) -> None:
        """Count a failed call. Log it when it opens the breaker."""
        if self.count_failure(epoch, now_us()):
            wait = (self._probe_at - self._opened_at) / SECOND
            counts = Counter(self._policies.values()).most_common()
            policies = ", ".join(f"{count} {'rule' if count == 1 else 'rules'} {policy}" for policy, count in counts)
            effect = f"applying on_store_error: {policies}; next probe in {wait:.1f} s"
            _log.warning("store %s unreachable (%s); %s", self._name, error, effect)

    def count_failure(self, epoch: int, now: int) -> bool:
        """Count a failed call. Return True when it opens the breaker."""
        with self._lock:
            if epoch != self.epoch:
                return False
            self.epoch += 1
            self.failures += 1
            if self.open or self.failures < _MAX_FAILURES:
                return False
            self.open, self._opened_at = True, now
            self.openings += 1
            self._schedule_probe(now, _FIRST_PROBE)
            return True

    def takes_probe(self, now: int) -> bool:
        """Return True when the caller must probe the store now. One caller at a time gets True."""
        with self._lock:
            if not self.open or now < self._probe_at:
                return False
            self._schedule_probe(now, min(2 * self._interval, _LAST_PROBE))
            return True

    def recover(self, now: int) -> int:
        """Close the breaker after a probe that succeeded. Return how long it was open, 0 when it was closed."""
        with self._lock:
            self.failures = 0
            if not self.open:
                return 0
            self.open = False
            self.epoch += 1
            return now - self._opened_at

    def _schedule_probe(self, now: int, interval: int) -> None:
        jitter = random.randrange(interval // 5)  # noqa: S311 - it spreads probes and hides nothing # nosec B311
        self._interval, self._probe_at = interval, now + interval - jitter

    def _probe(self) -> None:
        with suppress(StoreError):
            self.store.ping()
            if passed := self.recover(now_us()):
                _log.warning("store %s reachable again after %.1f s", self._name, passed / SECOND)


class _Call:
    """One call on the store of a ``BreakerStore``: rejected while the breaker is open, else its outcome is counted."""

    __slots__ = ("_breaker", "_epoch")

    def __init__(self, breaker: BreakerStore) -> None:
        self._breaker = breaker

    def __enter__(self) -> None:
        if self._breaker.open:
            self._breaker.reject_call()
        self._epoch = self._breaker.epoch

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            self._breaker.record_failure(error, self._epoch)
        elif error is None and self._breaker.failures:
            self._breaker.failures = 0


class Denial(Decision):
    """The rejection of a limit with ``on_store_error = "deny"``."""

    __slots__ = ()
    unavailable = True


class FailoverStore(ChainLink):
    """Decides by the policy of each limit when its store cannot be reached. "local" counts in the store ``local``."""

    def __init__(
        self, store: Store, policy: str, fleet_size: int, clock: Clock, lose: Callable[[Sequence[Hit]], None]
    ) -> None:
        """``lose`` receives hits that the store may have counted without a reply."""
        self.breaker = BreakerStore(store, policy)
        super().__init__(self.breaker)
        self.local = MemoryStore(clock=clock)
        self._policy = policy
        self._lose = lose
        self._local_limit = cache(lambda limit: limit.local_part(fleet_size))

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return self.store.apply(hits, now, consume)
        except StoreError as error:
            return self._decide_by_policy(hits, now, consume, error)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return await self.store.aapply(hits, now, consume)
        except StoreError as error:
            return self._decide_by_policy(hits, now, consume, error)

    def counted_by(self, changes: Sequence[Correction]) -> Store:
        return self.local if changes and changes[0].limit.local else self.store

    def forget_here(self, keys: Iterable[str]) -> None:
        self.local.forget(keys)

    def _decide_by_policy(
        self, hits: Sequence[Hit], now: int | None, consume: bool, error: StoreError
    ) -> list[Decision]:
        if consume and not isinstance(error, NotAskedError):
            self._lose(hits)
        local: list[Hit] = []
        denials: list[Decision] = []
        for hit in hits:
            policy = hit.limit.on_store_error or self._policy
            if policy == "local":
                local.append(hit._replace(limit=self._local_limit(hit.limit)))
            elif policy == "deny" and not hit.limit.shadow:
                denial = Denial(False, 0, _RETRY_DENIED, _RETRY_DENIED, self.local.clock())
                denial.hit = hit
                denials.append(denial)
        return denials or self.local.apply(local, now, consume)
