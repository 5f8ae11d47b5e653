"""The rejection cache: a key that the shared store has just rejected is rejected here, without asking the store.

Some rejections are not cached, because the state can change without this process: a log that counts rejections,
slots, and rules that count by outcome. The store decides each request of a rule with a ban, to count its rejection,
until the client is banned. The cache is bounded: it keeps two generations of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ...algorithms.window_log import RejectionCountingLog
from ...clock import machine
from ...decision import Decision, Hit
from ...receipt import Correction
from ...stores import Store
from ...testmode import testmode
from ..registry import Registry
from .link import ChainLink

_MAX_KEYS: Final = 50_000


class _Rejection(NamedTuple):
    """A decision, the time when it was cached, and the time until which it holds."""

    decision: Decision
    cached_at: int
    until: int

    def decide(self, hit: Hit, at: int) -> Decision | None:
        """Return the rejection of a later hit of the same cost or more; None when the store must decide."""
        rejected, passed = self.decision, at - self.cached_at
        limit, _, cost = rejected.hit
        if at >= self.until or hit[2] < cost or hit[0] is not limit:
            return None
        retry = None if hit[2] > limit.limit else (rejected.retry_us or 0) - passed
        reset = max(0, rejected.reset_us - passed)
        decision = Decision(False, rejected.remaining, retry, reset, rejected.at_us + passed)
        decision.hit = hit
        return decision


class RejectionCache(ChainLink):
    """Caches a rejection for its ``retry_us``, at most ``span_us``. A span of 0 caches nothing."""

    everywhere: Final[Registry[RejectionCache]] = Registry()
    """The caches of all limiters in this process."""

    def __init__(self, store: Store, span_us: int) -> None:
        super().__init__(store)
        self._span = span_us
        self._young: dict[str, _Rejection] = {}
        self._old: dict[str, _Rejection] = {}
        self.everywhere.add(self)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        at = _process_us()  # before the call, so that no rejection is kept beyond its time
        if consume and (self._young or self._old) and (cached := self._recall(hits, at)):
            return cached
        return self._learn(self.store.apply(hits, now, consume), at, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        at = _process_us()
        if consume and (self._young or self._old) and (cached := self._recall(hits, at)):
            return cached
        return self._learn(await self.store.aapply(hits, now, consume), at, consume)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        try:
            return self.store.correct(changes, now)
        finally:
            self.forget_here([change.key for change in changes])

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        try:
            return await self.store.acorrect(changes, now)
        finally:
            self.forget_here([change.key for change in changes])

    def _recall(self, hits: Sequence[Hit], at: int) -> list[Decision]:
        """Return the cached rejections; an empty list when the store must decide."""
        cached = []
        for hit in hits:
            rejection = self._young.get(hit[1]) or self._old.get(hit[1])
            if rejection is not None and (decision := rejection.decide(hit, at)):
                cached.append(decision)
            elif hit[0].is_ban or isinstance(hit[0].algorithm, RejectionCountingLog):
                return []
        return cached

    def _learn(self, decisions: list[Decision], at: int, consumed: bool) -> list[Decision]:
        """Cache the rejections of the store. Return the decisions."""
        if consumed and self._span:
            for decision in decisions:
                if not decision.allowed and not decision.hit[0].shadow:
                    self._remember(decisions, at)
                    return decisions
            if self._young or self._old:
                # The cached decisions of these keys hold an outdated ``remaining``.
                self._drop(decision.hit[1] for decision in decisions if not decision.local)
        return decisions

    def _remember(self, decisions: Sequence[Decision], at: int) -> None:
        rejecting = [decision for decision in decisions if not (decision.allowed or decision.shadow)]
        # If one of the rejecting limits must be asked each time, it may have the longest wait.
        if all(decision.retry_us and _may_be_cached(decision) for decision in rejecting):
            if len(self._young) >= _MAX_KEYS // 2:
                self._old, self._young = self._young, {}
            for decision in rejecting:
                until = at + min(decision.retry_us or 0, self._span)
                self._young[decision.hit[1]] = _Rejection(decision, at, until)

    def forget_here(self, keys: Iterable[str]) -> None:
        """Drop the keys from the caches of all limiters in this process."""
        for cache in self.everywhere:
            cache._drop(keys)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


def _process_us() -> int:
    """Return the time of this process; only differences of it matter."""
    clock = testmode.clock
    return machine.monotonic_ns() // 1000 if clock is None else clock()


def _may_be_cached(decision: Decision) -> bool:
    """Whether no other process, outcome, or rejection can change the state before the wait is over."""
    limit = decision.source
    counts_rejections = isinstance(limit.algorithm, RejectionCountingLog)
    return not (limit.statuses is not None or limit.quota.concurrent or counts_rejections or decision.local)
