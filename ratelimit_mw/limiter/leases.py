"""Leases: a process takes a share of a busy key's quota in one call, and consumes the share without asking the store.

The store counts a share when it is taken. So all processes together never exceed the limit as the store counts it,
even when a process crashes. A lease ends after a twentieth of the period, so consumption is late by at most that time.
Near the limit shares get small, so that little stays unused. The next request of any key that asks the store returns
the unused part of an ended lease; ``close`` returns the rest. At most one share per process is unused at any time.
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

    __slots__ = ("busy_until", "decision", "ends_at", "hit", "left", "next_share", "taken_at")

    def __init__(self, hit: Hit, share: int, now: int) -> None:
        self.hit = hit._replace(cost=share)
        self.taken_at = now
        self.ends_at = self.busy_until = now + _life(hit.limit)
        self.left = 0
        self.next_share = share
        self.decision: Decision | None = None

    def record_reply(self, decision: Decision, now: int) -> None:
        """Plan the next share from what the store has left: at most half of it."""
        self.next_share, self.busy_until = decision.remaining // 2, now

    def begin(self, decision: Decision) -> None:
        """Start to consume: the store has counted the share."""
        self.left, self.decision = self.hit.cost, decision

    def covers(self, hit: Hit, now: int) -> bool:
        """Whether the lease can serve a hit. Two limits of different plans may count under one key."""
        return hit[2] <= self.left and now < self.ends_at and hit[0] is self.hit[0] and self.decision is not None

    def consume(self, hit: Hit, now: int) -> Decision:
        """Take the cost of a hit. The decision continues the numbers of the store's decision."""
        self.left -= hit[2]
        counted, passed = self.decision, now - self.taken_at
        assert counted is not None
        reset = counted.reset_us - passed
        decision = Decision(True, counted.remaining + self.left, 0, reset if reset > 0 else 0, counted.at_us)
        decision.hit = hit
        return decision

    def unused(self) -> Correction | None:
        """Return the correction that returns the unused part."""
        if self.decision is None or not self.left:
            return None
        limit, key, share = self.hit
        return Correction(limit, key, self.left, Charge(self.decision.at_us, share))


class _LeaseTable:
    """The leases of this process, by key. Bounded."""

    def __init__(self) -> None:
        self.get = (by_key := dict[str, _Lease]()).get
        self._by_key = by_key
        self._by_life: dict[int, dict[str, _Lease]] = {}  # leases of one life end in the order in which they began
        self._seen: dict[str, int] = {}

    def put(self, lease: _Lease) -> list[_Lease]:
        """Add a lease. Return the leases that it replaces: the last one of the key, and the oldest of a full table."""
        key = lease.hit.key
        replaced = [self.pop(key)]
        if len(self._by_key) >= _MAX_KEYS:
            replaced.append(self.pop(next(iter(self._by_key))))
        self._by_key[key] = self._by_life.setdefault(_life(lease.hit.limit), {})[key] = lease
        return [each for each in replaced if each is not None]

    def pop(self, key: str) -> _Lease | None:
        lease = self._by_key.pop(key, None)
        if lease is not None:
            del self._by_life[_life(lease.hit.limit)][key]
        return lease

    def pop_ended(self, now: int, most: int) -> list[_Lease]:
        """Remove up to ``most`` leases that have ended, the oldest first."""
        ended: list[_Lease] = []
        for leases in self._by_life.values():
            while leases and len(ended) < most and (lease := next(iter(leases.values()))).ends_at <= now:
                del leases[lease.hit.key], self._by_key[lease.hit.key]
                ended.append(lease)
        return ended

    def all(self) -> list[_Lease]:
        return list(self._by_key.values())

    def is_busy(self, hit: Hit, now: int) -> bool:
        """Record that the key was seen. Return True when its last hit was at most a lease's life ago."""
        last_seen = self._seen.get(hit.key)
        if len(self._seen) >= _MAX_KEYS:
            self._seen.clear()
        self._seen[hit.key] = now
        return last_seen is not None and now - last_seen <= _life(hit.limit)


class QuotaLeases(ChainLink):
    """Serves hits from leases; all other hits go on to the store.

    ``clock`` is the limiter's time, ``now`` the time that it gives to the store, or None for the store's own.
    """

    def __init__(self, store: Store, clock: Clock, now: Callable[[], int | None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = now
        self._lock = create_lock(self, "_lock", threading.Lock, QuotaLeases._after_fork)
        self._table = _LeaseTable()

    def _after_fork(self, _whole: bool) -> None:
        """In a forked child: the shares belong to the parent."""
        self._table = _LeaseTable()

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return self.store.apply(hits, now, consume)
        if decisions := self._consume(hits):
            return decisions
        leases, unused = self._plan(hits)
        if unused:
            self.store.correct(unused, now)
        if leases:
            replies = self.store.apply([lease.hit for lease in leases], now)
            if decisions := self._begin(hits, leases, replies):
                return decisions
        return self.store.apply(hits, now)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return await self.store.aapply(hits, now, consume)
        if decisions := self._consume(hits):
            return decisions
        leases, unused = self._plan(hits)
        if unused:
            await self.store.acorrect(unused, now)
        if leases:
            replies = await self.store.aapply([lease.hit for lease in leases], now)
            if decisions := self._begin(hits, leases, replies):
                return decisions
        return await self.store.aapply(hits, now)

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

    def forget_here(self, keys: Sequence[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        with self._lock:
            for key in keys:
                self._table.pop(key)

    def _close_leases(self) -> list[list[Correction]]:
        with self._lock:
            unused = _unused(self._table.all())
            self._table = _LeaseTable()
        return [unused[i : i + _RETURNS_PER_CALL] for i in range(0, len(unused), _RETURNS_PER_CALL)]

    def _consume(self, hits: Sequence[Hit]) -> list[Decision]:
        """Take the cost of all hits from leases, or of none."""
        now = self._clock()
        pairs = []
        with self._lock:
            for hit in hits:
                lease = self._table.get(hit[1])
                if lease is None or not lease.covers(hit, now):
                    return []
                pairs.append((lease, hit))
            return [lease.consume(hit, now) for lease, hit in pairs]

    def _plan(self, hits: Sequence[Hit]) -> tuple[list[_Lease], list[Correction]]:
        """Return the leases to take, of busy keys without a call in flight, and the corrections to send before them."""
        now = self._clock()
        with self._lock:
            ended = self._table.pop_ended(now, _RETURNS_PER_REQUEST)
            leases = self._leases_for(hits, now)
            for lease in leases:
                ended += self._table.put(lease)
        return leases, _unused(ended)

    def _leases_for(self, hits: Sequence[Hit], now: int) -> list[_Lease]:
        """Return a lease for each hit, or none at all."""
        if not all([hit.limit.lease and self._table.is_busy(hit, now) for hit in hits]):  # noqa: C419 - records each
            return []
        shares = [self._share(hit, now) for hit in hits]
        if any(share <= max(1, hit.cost) for hit, share in zip(hits, shares, strict=True)):
            return []  # such a share saves no call
        return [_Lease(hit, share, now) for hit, share in zip(hits, shares, strict=True)]

    def _share(self, hit: Hit, now: int) -> int:
        """Return the share to take; 0 while a share is being taken, or when another limit has a lease of the key."""
        last = self._table.get(hit.key)
        if last is None or last.ends_at <= now:
            return hit.limit.lease
        return min(last.next_share, hit.limit.lease) if last.busy_until <= now and last.hit.limit is hit.limit else 0

    def _begin(self, hits: Sequence[Hit], leases: list[_Lease], replies: Sequence[Decision]) -> list[Decision]:
        """Serve the request from its new leases; no decisions when the store rejected one of the shares."""
        now = self._clock()
        with self._lock:
            for lease, decision in zip(leases, replies, strict=True):
                lease.record_reply(decision, now)
            if not all(decision.allowed for decision in replies):
                return []
            for lease, decision in zip(leases, replies, strict=True):
                lease.begin(decision)
                if self._table.get(lease.hit.key) is None:  # the call took longer than the lease's life
                    self._table.put(lease)
            return [lease.consume(hit, now) for lease, hit in zip(leases, hits, strict=True)]


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LEASES_PER_PERIOD)


def _unused(leases: Iterable[_Lease]) -> list[Correction]:
    return [correction for lease in leases if (correction := lease.unused())]
