"""Leases: a process takes a share of a busy key's quota in one call, and consumes the share without asking the store.

The store counts a share when it is taken, so all processes together never exceed the limit, even when one crashes.
A lease ends after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get
small. The next request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..clock import Clock
from ..decision import Decision, Hit
from ..errors import StoreError
from ..forksafe import create_lock
from ..receipt import Charge, Correction
from ..stores import Store
from .link import ChainLink

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_MAX_KEYS: Final = 10_000
_LEASES_PER_PERIOD: Final = 20
_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


class _Lease:
    """The share of one key. Until ``busy_until`` no other share of the key is taken: the store has not replied yet."""

    __slots__ = ("busy_until", "decision", "ends_at", "hit", "next_share", "taken_at", "unused")

    decision: Decision
    """The store's decision on the share. Until then ``unused`` is negative, so the lease covers no hit."""

    def __init__(self, hit: Hit, share: int, now: int) -> None:
        self.hit = hit._replace(cost=share)
        self.taken_at = now
        self.ends_at = self.busy_until = now + _life(hit.limit)
        self.unused = -1
        self.next_share = share

    def covers(self, hit: tuple[Limit, str, int], now: int) -> bool:
        """Whether the lease can serve a hit. Two limits of different plans may count under one key."""
        return hit[2] <= self.unused and now < self.ends_at and hit[0] is self.hit[0]

    def consume(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Take the cost of a hit. The decision continues the numbers of the store's decision."""
        self.unused -= hit[2]
        counted = self.decision
        reset = counted.reset_us - now + self.taken_at
        decision = Decision(True, counted.remaining + self.unused, 0, reset if reset > 0 else 0, counted.at_us)
        decision.hit = hit
        return decision


class _LeaseTable:
    """The leases of this process, by key. Bounded."""

    def __init__(self) -> None:
        self.by_key: dict[str, _Lease] = {}
        self._by_life: dict[int, dict[str, _Lease]] = {}  # leases of one life end in the order in which they began
        self._seen: dict[str, int] = {}

    def put(self, lease: _Lease) -> list[_Lease]:
        """Add a lease. Return the leases that it replaces: the last one of the key, and the oldest of a full table."""
        key = lease.hit.key
        replaced = self.pop(key)
        if len(self.by_key) >= _MAX_KEYS:
            replaced += self.pop(next(iter(self.by_key)))
        self.by_key[key] = self._by_life.setdefault(_life(lease.hit.limit), {})[key] = lease
        return replaced

    def pop(self, key: str) -> list[_Lease]:
        lease = self.by_key.pop(key, None)
        if lease is None:
            return []
        del self._by_life[_life(lease.hit.limit)][key]
        return [lease]

    def pop_ended(self, now: int, most: int) -> list[_Lease]:
        """Remove up to ``most`` leases that have ended, the oldest first."""
        ended: list[_Lease] = []
        for leases in self._by_life.values():
            while leases and len(ended) < most and (lease := next(iter(leases.values()))).ends_at <= now:
                ended += self.pop(lease.hit.key)
        return ended

    def is_busy(self, hit: Hit, now: int) -> bool:
        """Record that the key was seen. Return True when its last hit was at most a lease's life ago."""
        last_seen = self._seen.get(hit.key)
        if len(self._seen) >= _MAX_KEYS:
            self._seen.clear()
        self._seen[hit.key] = now
        return last_seen is not None and now - last_seen <= _life(hit.limit)


class QuotaLeases(ChainLink):
    """Serves hits from leases. ``clock`` is the limiter's time, ``now`` the time that it gives to the store if any."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], int | None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = now
        self._lock = create_lock(self, "_lock", threading.Lock, QuotaLeases._after_fork)
        self._table = _LeaseTable()

    def _after_fork(self, _intact: bool) -> None:
        self._table = _LeaseTable()  # the shares belong to the parent

    def apply_one(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Serve one hit of a request from its lease. None when there is no lease that covers it."""
        hit, now = (limit, key, cost), self._clock()
        with self._lock:
            lease = self._table.by_key.get(key)
            return None if lease is None or not lease.covers(hit, now) else lease.consume(hit, now)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if consume:
            if decisions := self._consume(hits):
                return decisions
            leases, returns = self._plan(hits)
            if returns:
                self.store.correct(returns, now)
            if leases:
                replies = self.store.apply([lease.hit for lease in leases], now)
                if decisions := self._begin(hits, leases, replies):
                    return decisions
        return self.store.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if consume:
            if decisions := self._consume(hits):
                return decisions
            leases, returns = self._plan(hits)
            if returns:
                await self.store.acorrect(returns, now)
            if leases:
                replies = await self.store.aapply([lease.hit for lease in leases], now)
                if decisions := self._begin(hits, leases, replies):
                    return decisions
        return await self.store.aapply(hits, now, consume)

    def close(self) -> None:
        """Return all shares and close the store. A share that the store does not take back lapses."""
        with suppress(StoreError):
            for changes in self._close_leases():
                self.store.correct(changes, self._now())
        self.store.close()

    async def aclose(self) -> None:
        with suppress(StoreError):
            for changes in self._close_leases():
                await self.store.acorrect(changes, self._now())
        await self.store.aclose()

    def forget_here(self, keys: Iterable[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        with self._lock:
            for key in keys:
                self._table.pop(key)

    def _close_leases(self) -> list[list[Correction]]:
        with self._lock:
            returns = _returns(self._table.by_key.values())
            self._table = _LeaseTable()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _consume(self, hits: Sequence[Hit]) -> list[Decision]:
        """Take the cost of all hits from leases, or of none."""
        now = self._clock()
        pairs = []
        with self._lock:
            for hit in hits:
                lease = self._table.by_key.get(hit[1])
                if lease is None or not lease.covers(hit, now):
                    return []
                pairs.append((lease, hit))
            return [lease.consume(hit, now) for lease, hit in pairs]

    def _plan(self, hits: Sequence[Hit]) -> tuple[list[_Lease], list[Correction]]:
        """Return a lease to take for each hit, or none at all, and the corrections to send before."""
        now = self._clock()
        with self._lock:
            ended = self._table.pop_ended(now, _RETURNS_PER_REQUEST)
            shares = [self._share(hit, now) for hit in hits]
            pairs = list(zip(hits, shares, strict=True))
            if any(share <= max(1, hit.cost) for hit, share in pairs):
                return [], _returns(ended)  # such a share saves no call
            leases = [_Lease(hit, share, now) for hit, share in pairs]
            for lease in leases:
                ended += self._table.put(lease)
        return leases, _returns(ended)

    def _share(self, hit: Hit, now: int) -> int:
        """Return the share to take: 0 when the key is not busy, a call is out or another limit has its lease."""
        if not (hit.limit.lease and self._table.is_busy(hit, now)):
            return 0
        last = self._table.by_key.get(hit.key)
        if last is None or last.ends_at <= now:
            return hit.limit.lease
        return min(last.next_share, hit.limit.lease) if last.busy_until <= now and last.hit.limit is hit.limit else 0

    def _begin(self, hits: Sequence[Hit], leases: list[_Lease], replies: Sequence[Decision]) -> list[Decision]:
        """Serve the request from its new leases; no decisions when the store rejected one of the shares."""
        now = self._clock()
        with self._lock:
            for lease, decision in zip(leases, replies, strict=True):
                # The next share is at most half of the remaining quota.
                lease.next_share, lease.busy_until = decision.remaining // 2, now
            if not all(decision.allowed for decision in replies):
                return []
            for lease, decision in zip(leases, replies, strict=True):
                lease.unused, lease.decision = lease.hit.cost, decision
                if lease.hit.key not in self._table.by_key:  # the call took longer than the lease's life
                    self._table.put(lease)
            return [lease.consume(hit, now) for lease, hit in zip(leases, hits, strict=True)]


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LEASES_PER_PERIOD)


def _returns(leases: Iterable[_Lease]) -> list[Correction]:
    """Build the corrections that return the unused parts of these leases."""
    unused = [lease for lease in leases if lease.unused > 0]
    return [Correction(*each.hit[:2], each.unused, Charge(each.decision.at_us, each.hit.cost)) for each in unused]
