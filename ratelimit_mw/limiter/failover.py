"""What happens when a shared store does not answer: each limit's policy, until the store answers again.

"local" counts in this process, by one of ``fleet_size`` shares of the limit; "allow" leaves the limit out; "deny"
rejects with 503. While the breaker is open no request touches the store: a probe asks it, in a thread of its own, one
at a time. One log line says that a store went, one that it came back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ..algorithms.limit import Limit
from ..clock import Clock, now_us, to_seconds
from ..decision import Correction, Decision, Hit
from ..errors import StoreError
from ..stores import MemoryStore, Store
from .breaker import Breaker

__all__ = ["Answer", "FailoverStore"]

Times = Sequence[int | None]

_RETRY_DENIED = 1_000_000
_log = logging.getLogger("ratelimit_mw")


class Answer(NamedTuple):
    """What was decided, and where: corrections go to the same store."""

    hits: Sequence[Hit]
    decisions: list[Decision]
    store: Store
    unavailable: bool = False


class FailoverStore:
    """A store that always answers: itself, or by the policies."""

    def __init__(self, store: Store, policy: str = "local", fleet_size: int = 1, clock: Clock | None = None) -> None:
        self.store = store
        self.local = MemoryStore()
        self._policy = policy
        self._fleet_size = fleet_size
        self._clock = clock or now_us
        self._shares: dict[Limit, Limit] = {}
        self.breaker = Breaker()

    def apply(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer:
        return self.ask_store(hits, now, consume) or self.decide_by_policy(hits, consume)

    def ask_store(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer | None:
        """What the store says; None when it does not answer, or is left alone."""
        if self._is_left_alone():
            return None
        began = now_us()
        try:
            decisions = self.store.apply(hits, now, consume)
        except StoreError as error:
            self._failed(error, began)
            return None
        self.breaker.succeeded()
        return Answer(hits, decisions, self.store)

    async def aapply(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer:
        return await self.aask_store(hits, now, consume) or self.decide_by_policy(hits, consume)

    async def aask_store(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer | None:
        if self._is_left_alone():
            return None
        began = now_us()
        try:
            decisions = await self.store.aapply(hits, now, consume)
        except StoreError as error:
            self._failed(error, began)
            return None
        self.breaker.succeeded()
        return Answer(hits, decisions, self.store)

    def correct(self, store: Store | None, changes: Sequence[Correction], now: int | None) -> Times | None:
        """The times of the changes in ``store``, the local one or else the shared one.

        Of a store that was asked and did not answer, nobody knows them; None: it was not asked.
        """
        if store is self.local:
            return self.local.correct(changes, self._clock())
        if self.breaker.open:
            return None
        began = now_us()
        try:
            return self.store.correct(changes, now)
        except StoreError as error:
            self._failed(error, began)
            return [None] * len(changes)

    async def acorrect(self, store: Store | None, changes: Sequence[Correction], now: int | None) -> Times | None:
        if store is self.local:
            return self.local.correct(changes, self._clock())
        if self.breaker.open:
            return None
        began = now_us()
        try:
            return await self.store.acorrect(changes, now)
        except StoreError as error:
            self._failed(error, began)
            return [None] * len(changes)

    def decide_by_policy(self, hits: Sequence[Hit], consume: bool) -> Answer:
        """What the policies say."""
        policies = [hit.limit.on_store_error or self._policy for hit in hits]
        denied = [hit for hit, policy in zip(hits, policies, strict=True) if policy == "deny" and not hit.limit.shadow]
        if denied:
            return Answer(denied, [_denial(hit.limit, self._clock()) for hit in denied], self.local, unavailable=True)
        mine = [self._shared(hit) for hit, policy in zip(hits, policies, strict=True) if policy == "local"]
        return Answer(mine, self.local.apply(mine, self._clock(), consume), self.local)

    def _shared(self, hit: Hit) -> Hit:
        if self._fleet_size == 1:
            return hit
        share = self._shares.get(hit.limit)
        if share is None:
            share = self._shares[hit.limit] = hit.limit.share(self._fleet_size)
        return hit._replace(limit=share)

    def _failed(self, error: StoreError, began: int) -> None:
        if self.breaker.failed(began, now_us()):
            _log.warning("the store does not answer (%s); limits go on by their on_store_error until it does", error)

    def _is_left_alone(self) -> bool:
        """Whether the breaker is open; now and then somebody asks beside the requests whether the store is back.

        In a thread, also for event loops: one that lives or runs for a moment only would never hear the answer.
        """
        if self.breaker.open and self.breaker.takes_probe(now_us()):
            threading.Thread(target=self._probe, name="ratelimit_mw probe", daemon=True).start()
        return self.breaker.open

    def _probe(self) -> None:
        try:
            self.store.ping()
        except StoreError:
            return
        self._recovered()

    def _recovered(self) -> None:
        if passed := self.breaker.close(now_us()):
            _log.warning("the store answers again, after %.1f s", to_seconds(passed))


def _denial(limit: Limit, now: int) -> Decision:
    decision = Decision(False, 0, _RETRY_DENIED, _RETRY_DENIED, now)
    decision.source = limit
    return decision
