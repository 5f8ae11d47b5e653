"""Failover for a shared store that cannot be reached: ``BreakerStore`` stops asking it, ``FailoverStore`` decides.

``on_store_error`` of each rule decides: "local" counts in this process, "allow" leaves the limit out, "deny" rejects
with 503.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..clock import SECOND, Clock, now_us
from ..decision import Decision, Hit
from ..errors import StoreError
from ..receipt import Correction
from ..stores import MemoryStore, Store
from .breaker import Breaker
from .link import ChainLink

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_RETRY_DENIED: Final = SECOND
_log = logging.getLogger("ratelimit_mw")


class NotAskedError(StoreError):
    """The circuit breaker is open, so the store was not asked."""


class BreakerStore(ChainLink):
    """Asks a store while its circuit breaker is closed, and raises ``NotAskedError`` while the breaker is open.

    While the breaker is open a thread probes the store, one at a time. A thread also serves event loops: a loop that
    ends after one request would never see the result of a probe of its own. The log has one line when the breaker
    opens and one when it closes.
    """

    def __init__(self, store: Store, policy: str) -> None:
        super().__init__(store)
        self.breaker = Breaker()
        self._name = store.name or type(store).__name__
        self._policy = policy
        self._policies: dict[str, str] = {}

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
        """Raise ``NotAskedError``. Probe the store when a probe is due."""
        if self.breaker.takes_probe(now_us()):
            threading.Thread(target=self._probe, name="ratelimit_mw probe", daemon=True).start()
        raise NotAskedError(f"store {self._name} unreachable; the circuit breaker is open")

    def record_failure(self, error: StoreError, epoch: int) -> None:
        """Count a failed call. Log it when it opens the breaker."""
        now = now_us()
        if self.breaker.failed(epoch, now):
            wait = self.breaker.probe_in(now) / SECOND
            effect = f"applying on_store_error: {self._describe_policies()}; next probe in {wait:.1f} s"
            _log.warning("store %s unreachable (%s); %s", self._name, error, effect)

    def _describe_policies(self) -> str:
        """Return the number of rules for each policy: ``"3 rules local, 1 rule deny"``."""
        counts = Counter(self._policies.values()).most_common()
        return ", ".join(f"{count} {'rule' if count == 1 else 'rules'} {policy}" for policy, count in counts)

    def _probe(self) -> None:
        try:
            self.store.ping()
        except StoreError:
            return
        if passed := self.breaker.close(now_us()):
            _log.warning("store %s reachable again after %.1f s", self._name, passed / SECOND)


class _Call:
    """One call on the store of a ``BreakerStore``: rejected while the breaker is open, else its outcome is counted."""

    __slots__ = ("_epoch", "_guard")

    def __init__(self, guard: BreakerStore) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        if self._guard.breaker.open:
            self._guard.reject_call()
        self._epoch = self._guard.breaker.epoch

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            self._guard.record_failure(error, self._epoch)
        elif error is None and self._guard.breaker.failures:
            self._guard.breaker.failures = 0


class Denial(Decision):
    """The rejection of a limit with ``on_store_error = "deny"``."""

    __slots__ = ()
    unavailable = True


class FailoverStore(ChainLink):
    """Decides by the policy of each limit when its store cannot be reached, and never raises in ``apply``.

    "local" counts in ``local``, by one of ``fleet_size`` equal parts of the limit.
    """

    def __init__(self, store: Store, policy: str, fleet_size: int, clock: Clock) -> None:
        shared = BreakerStore(store, policy)
        super().__init__(shared)
        self.breaker = shared.breaker
        self.local = MemoryStore(clock=clock)
        self._policy = policy
        self._fleet_size = fleet_size
        self._local_limits: dict[Limit, Limit] = {}

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return self.store.apply(hits, now, consume)
        except StoreError:
            return self._decide_by_policy(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return await self.store.aapply(hits, now, consume)
        except StoreError:
            return self._decide_by_policy(hits, now, consume)

    def counted_by(self, changes: Sequence[Correction]) -> Store:
        return self.local if changes and changes[0].limit.local else self.store

    def forget_here(self, keys: Sequence[str]) -> None:
        self.local.forget(keys)

    def _decide_by_policy(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
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

    def _local_limit(self, limit: Limit) -> Limit:
        local = self._local_limits.get(limit)
        if local is None:
            local = self._local_limits[limit] = limit.local_part(self._fleet_size)
        return local
