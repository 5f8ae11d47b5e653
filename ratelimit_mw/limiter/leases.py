"""Leases: a process draws a share of a hot key's quota in one call and consumes it here, without asking again.

What is drawn is counted in the store when it is drawn, so all processes together never pass more than the limit as
counted then, whatever crashes. A lease lives at most a twentieth of the period; the times at which it is used
trail by as much. Near the limit shares get small, so that little is left. What is left of a lease at its end is given
back by the next request that goes to the store anyway, whatever its key, or when the limiter is closed; else it lapses.
So at most one share a process is unused at any time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Final

from ..algorithms.limit import Limit
from ..clock import Clock
from ..decision import Charge, Correction, Decision, Hit
from .failover import Answer, FailoverStore

__all__ = ["QuotaLeases"]

_KEPT: Final = 10_000
_LIVES: Final = 20
_ON_THE_WAY: Final = 4  # leases of other keys that one request gives back: more than it draws
_AT_CLOSE: Final = 100  # what one call gives back when no request waits for it


class _Lease:
    """One key's share. Until ``waits_till`` nobody draws another: this draw is on its way, or the store is away."""

    __slots__ = ("decision", "drawn", "drawn_at", "ends_at", "left", "next", "waits_till")

    def __init__(self, hit: Hit, share: int, now: int) -> None:
        self.drawn = hit._replace(cost=share)
        self.drawn_at = now
        self.ends_at = self.waits_till = now + _life(hit.limit)
        self.left = 0
        self.next = share
        self.decision: Decision | None = None

    def told(self, decision: Decision, now: int) -> None:
        """The store has said what is left: the next one to draw takes at most half of it."""
        self.next, self.waits_till = decision.remaining // 2, now

    def begin(self, decision: Decision) -> None:
        """The store has counted the share."""
        self.left, self.decision = self.drawn.cost, decision

    def has(self, limit: Limit, cost: int, now: int) -> bool:
        """Also another limit may count by this key: that of another plan."""
        return cost <= self.left and now < self.ends_at and self.decision is not None and limit is self.drawn.limit

    def consume(self, limit: Limit, cost: int, now: int) -> Decision:
        """Take the cost of a hit. The store's numbers are those of the draw, carried on."""
        self.left -= cost
        told, passed = self.decision, now - self.drawn_at
        assert told is not None
        decision = Decision(True, told.remaining + self.left, 0, max(0, told.reset_us - passed), told.at_us)
        decision.source = limit
        return decision

    def unused(self) -> Correction | None:
        """What gives the rest back."""
        if self.decision is None or not self.left:
            return None
        limit, key, cost = self.drawn
        return Correction(limit, key, self.left, Charge(self.decision.at_us, cost))


class _LeaseTable:
    """The leases of this process, by key; bounded."""

    def __init__(self) -> None:
        self.get = (by_key := dict[str, _Lease]()).get
        self._by_key = by_key
        self._by_life: dict[int, dict[str, _Lease]] = {}  # of one life, they end in the order in which they began
        self._seen: dict[str, int] = {}

    def put(self, lease: _Lease) -> list[_Lease]:
        """Those that go for it: the one before of this key, and at the bound the oldest."""
        key = lease.drawn.key
        gone = [self.pop(key)]
        if len(self._by_key) >= _KEPT:
            gone.append(self.pop(next(iter(self._by_key))))
        self._by_key[key] = self._by_life.setdefault(_life(lease.drawn.limit), {})[key] = lease
        return [each for each in gone if each is not None]

    def pop(self, key: str) -> _Lease | None:
        lease = self._by_key.pop(key, None)
        if lease is not None:
            del self._by_life[_life(lease.drawn.limit)][key]
        return lease

    def ended(self, now: int, most: int) -> list[_Lease]:
        """Take out those whose life is over, the oldest first."""
        found: list[_Lease] = []
        for leases in self._by_life.values():
            while leases and len(found) < most and (lease := next(iter(leases.values()))).ends_at <= now:
                del leases[lease.drawn.key], self._by_key[lease.drawn.key]
                found.append(lease)
        return found

    def all(self) -> list[_Lease]:
        return list(self._by_key.values())

    def is_hot(self, hit: Hit, now: int) -> bool:
        """Whether the key was seen a lease's life ago or less. Now it was."""
        seen = self._seen.get(hit.key)
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen[hit.key] = now
        return seen is not None and now - seen <= _life(hit.limit)


class QuotaLeases:
    """Stands between a limiter and a shared store; what it cannot decide goes on to the store."""

    def __init__(self, shared: FailoverStore, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self.begin()
        _of_this_process.add(self)

    def begin(self) -> None:
        """Without any lease."""
        self._lock = threading.Lock()
        self._book = _LeaseTable()

    def apply(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer:
        if not consume:
            return self._shared.apply(hits, now, consume)
        if local := self._taken(hits):
            return local
        leases, unused = self._draw(hits)
        if unused and _is_lost(self._shared.correct(None, unused, now)):
            return self._shared.decide_by_policy(hits, consume)
        if leases:
            answer = self._shared.ask_store([lease.drawn for lease in leases], now, consume)
            if answer is None:
                return self._shared.decide_by_policy(hits, consume)
            if drawn := self._drawn(hits, leases, answer.decisions):
                return drawn
        return self._shared.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None, consume: bool) -> Answer:
        if not consume:
            return await self._shared.aapply(hits, now, consume)
        if local := self._taken(hits):
            return local
        leases, unused = self._draw(hits)
        if unused and _is_lost(await self._shared.acorrect(None, unused, now)):
            return self._shared.decide_by_policy(hits, consume)
        if leases:
            answer = await self._shared.aask_store([lease.drawn for lease in leases], now, consume)
            if answer is None:
                return self._shared.decide_by_policy(hits, consume)
            if drawn := self._drawn(hits, leases, answer.decisions):
                return drawn
        return await self._shared.aapply(hits, now, consume)

    def take(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """The answer of a lone limit out of a live lease; None when it takes more."""
        now = self._clock()
        with self._lock:
            lease = self._book.get(key)
            return None if lease is None or not lease.has(limit, cost, now) else lease.consume(limit, cost, now)

    def forget(self, keys: Iterable[str]) -> None:
        """These keys start anew: what was drawn of them before is no longer counted."""
        with self._lock:
            for key in keys:
                self._book.pop(key)

    def close(self, now: int | None) -> None:
        """Give everything back; what the store does not take lapses."""
        for changes in self._closed():
            if _is_lost(self._shared.correct(None, changes, now)):
                return

    async def aclose(self, now: int | None) -> None:
        for changes in self._closed():
            if _is_lost(await self._shared.acorrect(None, changes, now)):
                return

    def _closed(self) -> list[list[Correction]]:
        with self._lock:
            unused = _unused(self._book.all())
            self._book = _LeaseTable()
        return [unused[i : i + _AT_CLOSE] for i in range(0, len(unused), _AT_CLOSE)]

    def _taken(self, hits: Sequence[Hit]) -> Answer | None:
        """All of a request's cost out of live leases, or none of it."""
        now = self._clock()
        with self._lock:
            leases = []
            for limit, key, cost in hits:
                lease = self._book.get(key)
                if lease is None or not lease.has(limit, cost, now):
                    return None
                leases.append(lease)
            decisions = [lease.consume(limit, cost, now) for (limit, _, cost), lease in zip(hits, leases, strict=True)]
        return Answer(hits, decisions, self._shared.store)

    def _draw(self, hits: Sequence[Hit]) -> tuple[list[_Lease], list[Correction]]:
        """Leases to ask for, of keys that are hot and that nobody is drawing, and what to give back before."""
        now = self._clock()
        with self._lock:
            old = self._book.ended(now, _ON_THE_WAY)
            leases = self._asked(hits, now)
            for lease in leases:
                old += self._book.put(lease)
        return leases, _unused(old)

    def _asked(self, hits: Sequence[Hit], now: int) -> list[_Lease]:
        """A lease for each hit, or none at all."""
        if not all([hit.limit.lease and self._book.is_hot(hit, now) for hit in hits]):  # noqa: C419 - each is seen now
            return []
        shares = [self._share(hit, now) for hit in hits]
        if any(share <= max(1, hit.cost) for hit, share in zip(hits, shares, strict=True)):
            return []  # it would save nothing
        return [_Lease(hit, share, now) for hit, share in zip(hits, shares, strict=True)]

    def _share(self, hit: Hit, now: int) -> int:
        """How much there is to draw; 0 while somebody is at it, or another limit has a lease of the key."""
        last = self._book.get(hit.key)
        if last is None or last.ends_at <= now:
            return hit.limit.lease
        return min(last.next, hit.limit.lease) if last.waits_till <= now and last.drawn.limit is hit.limit else 0

    def _drawn(self, hits: Sequence[Hit], leases: list[_Lease], told: Sequence[Decision]) -> Answer | None:
        """The request's own answer out of a draw; None when the shares were not to be had: ask for the cost alone."""
        now = self._clock()
        with self._lock:
            for lease, decision in zip(leases, told, strict=True):
                lease.told(decision, now)
            if not all(decision.allowed for decision in told):
                return None
            for lease, decision in zip(leases, told, strict=True):
                lease.begin(decision)
                if self._book.get(lease.drawn.key) is None:  # it took longer than the lease's life
                    self._book.put(lease)
            decisions = [lease.consume(limit, cost, now) for (limit, _, cost), lease in zip(hits, leases, strict=True)]
        return Answer(hits, decisions, self._shared.store)


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LIVES)


def _is_lost(times: Sequence[int | None] | None) -> bool:
    """Whether a store was asked in vain: nobody asks it again for the same request."""
    return times is not None and None in times


def _unused(leases: Iterable[_Lease]) -> list[Correction]:
    return [change for lease in leases if (change := lease.unused())]


_of_this_process: weakref.WeakSet[QuotaLeases] = weakref.WeakSet()


def _begin_anew() -> None:
    """What a process has drawn is not its children's, too."""
    for leases in list(_of_this_process):
        leases.begin()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_begin_anew)
