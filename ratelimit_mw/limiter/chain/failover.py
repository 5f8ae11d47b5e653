"""Failover for an unreachable shared store: ``BreakerStore`` stops asking it, ``FailoverStore`` decides.

By the ``on_store_error`` of each limit, "local" counts in this process, "allow" leaves the limit out, and "deny"
rejects with 503. Local counting starts from the last decision of the store on a key. Each process has its share of the
remaining quota, and of the whole quota after the next reset.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ...clock import Clock, monotonic
from ...decision import Decision, Hit, build_denial, count_hits
from ...errors import RateLimitError, StateError, StoreError
from ...forksafe import create_lock
from ...receipt import Correction
from ...stores import MemoryStore, Store
from ..registry import Registry
from .breaker import CircuitBreaker, NotAskedError
from .fleet import Fleet
from .last_decision import LastDecision
from .link import ChainLink

if TYPE_CHECKING:
    from ...algorithms.limit import Limit
    from ...settings import Settings

_MAX_LIMITS: Final = 10_000
_LOG_EVERY: Final = 60.0  # seconds
_log = logging.getLogger("ratelimit_mw")


class LastDecisions:
    """The last decision of the store on each key. Bounded: it has two generations of keys."""

    def __init__(self, max_keys: int) -> None:
        self._part = max(1, max_keys // 2)
        # Plain tuples of numbers: the garbage collector does not visit them.
        self._young: dict[str, tuple[int, int, int, int]] = {}
        self._old: dict[str, tuple[int, int, int, int]] = {}

    def keep(self, decisions: Sequence[Decision]) -> None:
        young = self._young
        for decision in decisions:
            limit, key, cost = decision.hit
            known, began = young.get(key), decision.at_us
            if known is not None and known[3] < began:
                # A hit that found nothing consumed may be the first one after a reset, or after a loss of data.
                is_first = decision.remaining + cost >= limit.limit and all(each.allowed for each in decisions)
                began = began if is_first else known[3]
            young[key] = (decision.remaining, decision.at_us, decision.reset_us, began)
        if len(young) >= self._part:
            self._old, self._young = young, {}

    def correct(self, changes: Sequence[Correction], times: Sequence[int]) -> None:
        """Apply the corrections that the store has made."""
        for change, at in zip(changes, times, strict=True):
            if change.cost and (last := self.pop(change.key)):
                last = last.corrected(change, at)
                if last.rest < change.limit.limit:
                    self._young.setdefault(change.key, last[:])  # another thread may know a later decision

    def pop(self, key: str) -> LastDecision | None:
        old = self._old.pop(key, None)
        last = self._young.pop(key, old)
        return last and LastDecision(*last)


class BreakerStore(CircuitBreaker):
    """Asks a store while its circuit breaker is closed. It keeps what the process needs when the breaker opens."""

    def __init__(
        self, store: Store, policies: Callable[[], Iterable[str]], fleet_size: int | None, max_keys: int
    ) -> None:
        super().__init__(store, policies)
        self.fleet = Fleet(store, fleet_size)
        self.last = LastDecisions(max_keys)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if self.open:
            self.reject_call()
        epoch, asked = self.epoch, hits
        if consume and monotonic() >= self.fleet.due_at:
            asked = self.fleet.join(hits)
        try:
            decisions = self.store.apply(asked, now, consume)
        except StoreError as error:
            self.record_failure(error, epoch)
            raise
        return self._learn(decisions, asked is not hits)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if self.open:
            self.reject_call()
        epoch, asked = self.epoch, hits
        if consume and monotonic() >= self.fleet.due_at:
            asked = self.fleet.join(hits)
        try:
            decisions = await self.store.aapply(asked, now, consume)
        except StoreError as error:
            self.record_failure(error, epoch)
            raise
        return self._learn(decisions, asked is not hits)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            times = self.store.correct(changes, now)
        self.last.correct(changes, times)
        return times

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with _Call(self):
            times = await self.store.acorrect(changes, now)
        self.last.correct(changes, times)
        return times

    def _learn(self, decisions: list[Decision], is_announcement: bool) -> list[Decision]:
        if self.failures:
            self.record_success()
        if is_announcement:
            decisions = self.fleet.learn(decisions)
        self.last.keep(decisions)
        return decisions


class _Call:
    """One correction: rejected while the breaker is open, else its outcome is counted. ``apply`` does so without it."""

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
            self._breaker.record_success()


class FailoverStore(ChainLink):
    """Decides by the policy of each limit when its store is unreachable. "local" counts in the store ``local``."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        now: Callable[[], int | None],
        lose: Callable[[Sequence[Hit]], None],
        policies: Callable[[], Iterable[str]],
    ) -> None:
        """``clock`` is the clock of the limiter. ``now`` returns the time to pass to the store, or None.

        ``lose`` receives the hits that the store may have counted although it sent no reply. ``policies`` returns the
        ``on_store_error`` of each rule.
        """
        self._policy = settings.on_store_error
        self.breaker = BreakerStore(store, policies, settings.fleet_size, settings.fallback_keys)
        super().__init__(self.breaker)
        self.local = MemoryStore(settings.fallback_keys, clock)
        self.local_decisions = 0
        self._now = now
        self._lose = lose
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._local_limit = lru_cache(_MAX_LIMITS)(lambda limit, parts: limit.local_part(parts))
        self._is_warned = False
        self._logs_state_at = 0.0
        _open_stores.add(self)
        atexit.unregister(_leave_fleets)
        atexit.register(_leave_fleets)  # again, so that it runs before the store of this limiter ends

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return self._apply_anew(hits, now, consume)
        except StoreError as error:
            return self._decide_by_policy(hits, now, consume, error)

    def _apply_anew(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        """Decide by the store. Each key whose state cannot be decoded starts anew, once."""
        for _ in hits:
            try:
                return self.store.apply(hits, now, consume)
            except StateError as error:
                self._log_state(error, hits)
                self.store.forget(error.keys)
        return self.store.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        try:
            return await self._aapply_anew(hits, now, consume)
        except StoreError as error:
            return self._decide_by_policy(hits, now, consume, error)

    async def _aapply_anew(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        for _ in hits:
            try:
                return await self.store.aapply(hits, now, consume)
            except StateError as error:
                self._log_state(error, hits)
                await self.store.aforget(error.keys)
        return await self.store.aapply(hits, now, consume)

    def counted_by(self, changes: Sequence[Correction]) -> Store:
        return self.local if changes and changes[0].limit.local else self.store

    def forget_here(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.breaker.last.pop(key)
        self.local.forget(keys)

    def leave_fleet(self) -> None:
        """End the announcement of this process, within the time budget of a call. Without a reply it expires."""
        if leaving := self.breaker.fleet.leave():
            with suppress(RateLimitError):
                self.breaker.correct(leaving, self._now())

    def close(self) -> None:
        self.leave_fleet()
        super().close()

    async def aclose(self) -> None:
        if leaving := self.breaker.fleet.leave():
            with suppress(RateLimitError):
                await self.breaker.acorrect(leaving, self._now())
        await super().aclose()

    def _log_state(self, error: StateError, hits: Sequence[Hit]) -> None:
        """Log a key that starts anew. No client can cause it, but a damaged store may have many such keys."""
        if (now := monotonic()) >= self._logs_state_at:
            self._logs_state_at = now + _LOG_EVERY
            rules = ", ".join(sorted({hit.limit.rule for hit in hits if hit.key in error.keys}))
            _log.warning("store %s: %s (rule %s); such keys start anew", self.breaker.name, error, rules)

    def _decide_by_policy(
        self, hits: Sequence[Hit], now: int | None, consume: bool, error: StoreError
    ) -> list[Decision]:
        with self._lock:
            self.local_decisions += count_hits(hits)
        if consume and not isinstance(error, NotAskedError):
            self._lose(hits)
        local: list[Hit] = []
        denials: list[Decision] = []
        for hit in hits:
            policy = hit.limit.on_store_error or self._policy
            if policy == "local":
                local.append(hit)
            elif policy == "deny" and not hit.limit.shadow:
                denials.append(build_denial(hit, self.local.clock()))
        return denials or self._decide_here(local, now, consume)

    def _decide_here(self, hits: Sequence[Hit], now: int | None, consume: bool) -> list[Decision]:
        size = self._fleet_size()
        local = [_local_hit(hit, self._local_limit(hit.limit, size)) for hit in hits]
        with self._lock:  # no other thread decides on a key before its last decision is carried over
            for hit, here in zip(hits, local, strict=True):
                if last := self.breaker.last.pop(hit.key):
                    last.carry_over(hit, here.limit, size, self.local, self.local.clock() if now is None else now)
        return self.local.apply(local, now, consume)

    def _fleet_size(self) -> int:
        size = self.breaker.fleet.size
        if not size and not self._is_warned:
            self._is_warned = True
            _log.warning(
                "store %s was never reached, so the number of processes is not known and each allows the whole limit;"
                " set fleet_size",
                self.breaker.name,
            )
        return size or 1


def _local_hit(hit: Hit, limit: Limit) -> Hit:
    """Return the hit for local counting. A cost above the part of a process, but within the limit, takes the part."""
    is_held = limit.limit < hit.cost <= hit.limit.limit and not hit.limit.quota.concurrent
    return hit._replace(limit=limit, cost=limit.limit if is_held else hit.cost)


_open_stores: Final = Registry[FailoverStore]()


def _leave_fleets() -> None:
    """Leave the fleets at the end of this process: a worker that its server replaces does not count."""
    for store in _open_stores:
        with suppress(Exception):  # the interpreter may no longer start threads
            store.leave_fleet()
