"""The decisions of the store that a process remembers: rejections to repeat, and the last one on each key.

A key that the store has just rejected is rejected here, without asking the store. Some rejections are not cached,
because the state can change without this process: a log that counts rejections, slots, and rules that count by outcome.
The store decides each request of a rule with a ban, to count its rejection, until the client is banned.

Both caches are bounded: they keep two generations of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ...algorithms.window_log import RejectionCountingLog
from ...decision import Ban, BanLimit, Charge, Correction, Decision, Hit, Limit
from ...stores import MemoryStore

_MAX_KEYS: Final = 50_000


class _Rejection(NamedTuple):
    """A decision, the time when it was cached, and the time until which it holds."""

    decision: Decision
    cached_at: int
    until: int

    def decide(self, hit: tuple[Limit, str, int], at: int) -> Decision | None:
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


class Rejections:
    """Caches a rejection for its ``retry_us``, at most ``span_us``. A span of 0 caches nothing. It makes no calls."""

    def __init__(self, span_us: int) -> None:
        self._span = span_us
        self._young: dict[str, _Rejection] = {}
        self._old: dict[str, _Rejection] = {}

    def recall(self, hits: Sequence[tuple[Limit, str, int]], at: int) -> list[Decision]:
        """Return the cached rejections at a time in microseconds; an empty list when the store must decide."""
        if not (self._young or self._old):
            return []
        cached = []
        for hit in hits:
            rejection = self._young.get(hit[1]) or self._old.get(hit[1])
            if rejection is not None and (decision := rejection.decide(hit, at)):
                cached.append(decision)
            elif isinstance(hit[0].algorithm, Ban | RejectionCountingLog):
                return []
        return cached

    def learn(self, decisions: list[Decision], at: int) -> list[Decision]:
        """Cache the rejections of a call that began ``at`` a time. Return the decisions."""
        rejecting = [decision for decision in decisions if not (decision.allowed or decision.hit[0].shadow)]
        if not rejecting:
            if self._young or self._old:
                # The cached decisions of these keys hold an outdated ``remaining``.
                self.forget(decision.hit[1] for decision in decisions)
        # If one of the rejecting limits must be asked each time, it may have the longest wait.
        elif self._span and all(decision.retry_us and _may_be_cached(decision) for decision in rejecting):
            if len(self._young) >= _MAX_KEYS // 2:
                self._old, self._young = self._young, {}
            for decision in rejecting:
                until = at + min(decision.retry_us or 0, self._span)
                self._young[decision.hit[1]] = _Rejection(decision, at, until)
        return decisions

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


def _may_be_cached(decision: Decision) -> bool:
    """Return whether no other process, outcome or rejection can change the state before the wait is over."""
    limit = decision.source
    counts_rejections = isinstance(limit.algorithm, RejectionCountingLog)
    return not (limit.statuses is not None or limit.quota.concurrent or counts_rejections)


class LastDecision(NamedTuple):
    """The quota that remained after a decision, the time of the decision, and the time until its reset."""

    rest: int
    at_us: int
    reset_us: int

    def corrected(self, change: Correction, at: int) -> LastDecision:
        """Return the decision as it is after a correction at the time ``at``.

        A refund of an earlier charge changes nothing, because the key may have been reset since.
        """
        limit, _, cost, consumed = change
        if self.at_us > at:  # the store has decided after the correction
            return self
        if consumed is not None and consumed.at_us < self.at_us and not limit.quota.concurrent:
            return self
        if consumed is not None:
            return self._replace(rest=min(limit.algorithm.limit, self.rest + refunded(limit, consumed, cost, at)))
        rest = self.rest if at < self.at_us + self.reset_us else limit.algorithm.limit
        rest = max(0, rest - cost)
        return self._replace(rest=rest, at_us=at, reset_us=_time_to_reset(limit, limit.algorithm.limit - rest, at))

    def carry_over(self, hit: Hit, local: Limit, size: int, store: MemoryStore, now: int) -> None:
        """Leave a key in ``store`` at most one of ``size`` shares of the remaining quota, until the same reset."""
        if self.at_us + self.reset_us <= now:
            return
        if isinstance(local, BanLimit):
            if not self.rest and (left := self.at_us + self.reset_us - local.quiet - now) > 0:
                store.correct([Correction(local.lasting(left), hit.key, 1, None)], now)
            return
        local = local.leaving(0) if local.held else local  # that of all classes
        at, share = min(self.at_us, now), -(-self.rest // size)
        later = max(0, _time_to_reset(hit.limit, hit.limit.algorithm.limit - self.rest, at) - self.reset_us)
        # The second charge is for algorithms that count an earlier charge less.
        for moment in (at - later, at):
            (here,) = store.apply([hit._replace(limit=local, cost=0)], moment, consume=False)
            if here.remaining > share:
                store.correct([Correction(local, hit.key, here.remaining - share, None)], moment)


class LastDecisions:
    """The last decision of the store on each key. During an outage, a process continues from it."""

    def __init__(self, max_keys: int) -> None:
        self._part = max(1, max_keys // 2)
        # Plain tuples of numbers: the garbage collector does not visit them.
        self._young: dict[str, tuple[int, int, int]] = {}
        self._old: dict[str, tuple[int, int, int]] = {}

    def keep(self, decisions: Sequence[Decision]) -> None:
        young = self._young
        for decision in decisions:
            limit, key, _ = decision.hit
            young[key] = (decision.remaining + limit.held, decision.at_us, decision.reset_us)
        if len(young) >= self._part:
            self._old, self._young = young, {}

    def correct(self, changes: Sequence[Correction], times: Sequence[int]) -> None:
        """Apply the corrections that the store has made."""
        for change, at in zip(changes, times, strict=True):
            if change.cost and (last := self.pop(change.key)):
                # Another thread may know a later decision.
                self._young.setdefault(change.key, last.corrected(change, at)[:])

    def pop(self, key: str) -> LastDecision | None:
        old = self._old.pop(key, None)
        last = self._young.pop(key, old)
        return last and LastDecision(*last)


def refunded(limit: Limit, consumed: Charge, cost: int, at: int) -> int:
    """Return how much more remains after a refund: nothing for a cost that has left the window or has drained."""
    if limit.quota.concurrent:
        return cost
    if limit.algorithm.delays:  # a later request may have the place behind it
        return 0
    alone = limit.algorithm.charge(None, consumed.at_us, consumed.cost)
    rest = limit.algorithm.refund(alone, at, consumed, cost)
    return limit.algorithm.decide(rest, at, 0)[1].remaining - limit.algorithm.decide(alone, at, 0)[1].remaining


def _time_to_reset(limit: Limit, cost: int, at: int) -> int:
    return limit.algorithm.decide(limit.algorithm.charge(None, at, cost), at, 0)[1].reset_us
