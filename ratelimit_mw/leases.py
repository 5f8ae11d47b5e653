"""Leases: a process draws a share of a hot key's quota in one call and spends it here, without asking again.

What is drawn is counted in the store when it is drawn, so all processes together never pass more than the limit as
counted then, whatever crashes. A lease lives at most a twentieth of the period; the times at which its share is
spent trail by as much. What is left at its end is given back with the next draw, or lapses: at most one share a
process is unused at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from .clock import Clock
from .decision import Change, Decision, Hit, Spent
from .limit import Limit
from .resilience import Answer, Resilient

__all__ = ["Leases"]

_KEPT: Final = 10_000
_LIVES: Final = 20


class _Lease:
    """One key's share. Until ``waits_till`` nobody draws: a draw is on its way, or was refused."""

    __slots__ = ("decision", "drawn_at", "ends_at", "left", "spent", "waits_till")

    def __init__(self, now: int, ends_at: int) -> None:
        self.drawn_at = now
        self.ends_at = ends_at
        self.waits_till = ends_at
        self.left = 0
        self.spent: Spent | None = None
        self.decision: Decision | None = None


class _Draw(NamedTuple):
    """Hits grown to whole shares, and what is to be given back first."""

    hits: list[Hit]
    unused: list[Change]


class Leases:
    """Stands between a limiter and a shared store; what it cannot decide goes on to the store."""

    def __init__(self, shared: Resilient, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._seen: dict[str, int] = {}

    def apply(self, hits: Sequence[Hit], now: int | None, spend: bool) -> Answer:
        if not spend or not all(hit.limit.lease for hit in hits):
            return self._shared.apply(hits, now, spend)
        if local := self._taken(hits):
            return local
        draw = self._draw(hits)
        if draw is None:
            return self._shared.apply(hits, now, spend)
        if draw.unused:
            self._shared.correct(self._shared.store, draw.unused, now)
        answer = self._drawn(hits, draw, self._shared.apply(draw.hits, now, spend))
        return answer or self._shared.apply(hits, now, spend)

    async def aapply(self, hits: Sequence[Hit], now: int | None, spend: bool) -> Answer:
        if not spend or not all(hit.limit.lease for hit in hits):
            return await self._shared.aapply(hits, now, spend)
        if local := self._taken(hits):
            return local
        draw = self._draw(hits)
        if draw is None:
            return await self._shared.aapply(hits, now, spend)
        if draw.unused:
            await self._shared.acorrect(self._shared.store, draw.unused, now)
        answer = self._drawn(hits, draw, await self._shared.aapply(draw.hits, now, spend))
        return answer or await self._shared.aapply(hits, now, spend)

    def _taken(self, hits: Sequence[Hit]) -> Answer | None:
        """All of a request's cost out of live leases, or none of it."""
        now = self._clock()
        with self._lock:
            leases = []
            for hit in hits:
                lease = self._leases.get(hit.key)
                if lease is None or lease.left < hit.cost or now >= lease.ends_at:
                    return None
                leases.append(lease)
            decisions = [_spend(hit, lease, now) for hit, lease in zip(hits, leases, strict=True)]
            return Answer(hits, decisions, self._shared.store)

    def _draw(self, hits: Sequence[Hit]) -> _Draw | None:
        """What to draw now: shares for keys that were seen within a lease's life, unless somebody is at it."""
        now = self._clock()
        with self._lock:
            hot = [self._is_hot(hit, now) for hit in hits]
            waits = any((lease := self._leases.get(hit.key)) is not None and now < lease.waits_till for hit in hits)
            if waits or not all(hot):
                return None
            unused = [change for hit in hits if (change := self._unused(hit))]
            self._make_room()
            for hit in hits:
                self._leases[hit.key] = _Lease(now, now + _life(hit.limit))
            return _Draw([hit._replace(cost=max(hit.cost, hit.limit.lease)) for hit in hits], unused)

    def _is_hot(self, hit: Hit, now: int) -> bool:
        seen = self._seen.get(hit.key)
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen[hit.key] = now
        return seen is not None and now - seen <= _life(hit.limit)

    def _unused(self, hit: Hit) -> Change | None:
        lease = self._leases.pop(hit.key, None)
        return Change(hit.limit, hit.key, lease.left, lease.spent) if lease is not None and lease.left else None

    def _make_room(self) -> None:
        """Forget the oldest lease at the bound; what it had left lapses."""
        while len(self._leases) >= _KEPT:
            del self._leases[next(iter(self._leases))]

    def _drawn(self, hits: Sequence[Hit], draw: _Draw, answer: Answer) -> Answer | None:
        """The requests' own answer out of a draw; None when the shares were not to be had: ask for the cost alone."""
        if answer.store is not self._shared.store or not all(decision.allowed for decision in answer.decisions):
            return None
        now = self._clock()
        with self._lock:
            decisions = []
            for hit, grown, decision in zip(hits, draw.hits, answer.decisions, strict=True):
                lease = self._leases.setdefault(hit.key, _Lease(now, now))
                lease.left, lease.decision, lease.waits_till = grown.cost, decision, now
                lease.spent = Spent(decision.at_us, grown.cost)
                decisions.append(_spend(hit, lease, now))
        return Answer(hits, decisions, self._shared.store)


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LIVES)


def _spend(hit: Hit, lease: _Lease, now: int) -> Decision:
    """Take the cost out of the lease. The store's numbers are those of the draw, carried on."""
    lease.left -= hit.cost
    told, passed = lease.decision, now - lease.drawn_at
    assert told is not None
    decision = Decision(True, told.remaining + lease.left, 0, max(0, told.reset_us - passed), told.at_us)
    decision.bound = hit.limit
    return decision
