"""Decisions without the store: ``Leases`` serves hits on busy keys from the shares that this process has taken.

A process takes a share of a busy key's quota in one call, and consumes the share without asking the store. The store
counts a share when it is taken, so all processes together never exceed the limit, even when one crashes. A lease ends
after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get small. The next
request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.

Leases serve a request whole, or not at all. In the one call of a request whose limits all have leases, a share goes in
the place of each hit that no lease covers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...clock import Clock
from ...decision import Charge, Correction, Decision, Hit, Limit
from ...runtime.forksafe import create_lock

MAX_KEYS: Final = 10_000
_LEASES_PER_PERIOD: Final = 20
_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # as after an outage


class Lease:
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
        """Return whether the lease can serve a hit. Two limits of different plans may count under one key."""
        return hit[2] <= self.unused and now < self.ends_at and hit[0] is self.hit[0]

    def serve(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Take the cost of a hit. The decision is derived from the store's decision."""
        self.unused -= hit[2]
        counted = self.decision
        rest, reset = counted.remaining + self.unused, counted.reset_us - now + self.taken_at
        decision = Decision(True, rest, 0, reset if reset > 0 else 0, counted.at_us)
        decision.hit = hit
        return decision


@dataclass(slots=True, eq=False)
class LeasedRequest:
    """A request that the store decides."""

    hits: Sequence[Hit]
    asked: list[Hit]
    """The hits for the store."""
    result: list[Decision] = field(default_factory=list)
    """The decisions; empty until they are known."""
    shares: dict[int, Lease] = field(default_factory=dict)
    """The leases whose share takes the place of a hit, by its position."""
    returns: list[Correction] = field(default_factory=list)
    """The corrections that return other leases, to send before."""


class Leases:
    """The leases of this process, at most ``MAX_KEYS``. It makes no calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = create_lock(self, "_lock", threading.Lock, Leases._start_over)
        self._start_over()

    def _start_over(self, _intact: bool = True) -> None:
        """In a forked child: the shares belong to the parent."""
        self._by_key: dict[str, Lease] = {}
        self._by_life: dict[int, dict[str, Lease]] = {}  # leases of one life end in the order in which they began
        self._ended: list[Lease] = []  # no longer in the tables, with a part to return
        self._seen: dict[str, int] = {}  # the last hit of each key

    def serve(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Decide the one hit of a request. None when the store must decide it."""
        with self._lock:
            lease = self._by_key.get(key)
            hit, now = (limit, key, cost), self._clock()
            return lease.serve(hit, now) if lease is not None and lease.covers(hit, now) else None

    def serve_all(self, hits: Sequence[Hit]) -> list[Decision]:
        """Decide all hits of a request. The list is empty when the store must decide them."""
        leases = []
        with self._lock:
            now = self._clock()
            for hit in hits:
                lease = self._by_key.get(hit[1])
                if lease is None or not lease.covers(hit, now):
                    return []
                leases.append(lease)
            return [lease.serve(hit, now) for lease, hit in zip(leases, hits, strict=True)]

    def begin(self, hits: Sequence[Hit], is_away: bool) -> LeasedRequest:
        """Choose what to ask the store for. While it ``is_away``, return no lease."""
        request = LeasedRequest(hits, list(hits))
        with self._lock:
            now = self._clock()
            for i, hit in enumerate(hits) if all(hit.limit.lease for hit in hits) else ():
                lease = self._by_key.get(hit.key)
                if (lease is None or not lease.covers(hit, now)) and (share := self._take_share(hit, now)):
                    request.shares[i], request.asked[i] = share, share.hit
            request.returns = [] if is_away else self._take_ended(now)
        return request

    def learn(self, request: LeasedRequest, replies: list[Decision]) -> None:
        """Build the decisions of a request. When the store has rejected a share, ask for the hits themselves."""
        if request.shares:  # without shares, threads need no lock
            with self._lock:
                if not self._fill(request, replies, self._clock()):
                    request.asked, request.shares = list(request.hits), {}
                    return
        request.result = replies

    def forget(self, keys: Iterable[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        with self._lock:
            for key in keys:
                self._pop(key)

    def return_all(self) -> list[list[Correction]]:
        """Build the corrections that return all unused shares, in groups for one call each."""
        with self._lock:
            returns = _corrections([*self._ended, *self._by_key.values()])
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _take_share(self, hit: Hit, now: int) -> Lease | None:
        """Add the lease whose share takes the place of a hit. None when such a share would save no call."""
        last_seen, last = self._seen.get(hit.key), self._by_key.get(hit.key)
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[hit.key] = now
        if last_seen is None or now - last_seen > _life(hit.limit):
            return None  # the key is not busy
        share = hit.limit.lease
        if last is not None and last.ends_at > now:
            if last.busy_until > now or last.hit.limit is not hit.limit:
                return None
            share = min(last.next_share, share)
        if share <= max(1, hit.cost):
            return None
        lease = Lease(hit, share, now)
        self._put(lease)
        return lease

    def _fill(self, request: LeasedRequest, replies: list[Decision], now: int) -> bool:
        """Fill the leases of an allowed request, and serve its hits. False when the store has rejected a share."""
        is_allowed, are_taken = all(reply.allowed for reply in replies), True
        for i, lease in request.shares.items():
            # The next share is at most half of the remaining quota.
            lease.next_share, lease.busy_until = replies[i].remaining // 2, now
            are_taken = are_taken and replies[i].allowed
        for i, lease in request.shares.items():
            if is_allowed:
                lease.unused, lease.decision = lease.hit.cost, replies[i]
                if self._by_key.get(lease.hit.key) is not lease:  # the call took longer than the lease's life
                    self._ended.append(lease)
                replies[i] = lease.serve(request.hits[i], now)
            replies[i].hit = request.hits[i]
        return are_taken

    def _take_ended(self, now: int) -> list[Correction]:
        """Build the corrections that return replaced leases, and some of those that have ended."""
        ended, self._ended = self._ended[:_RETURNS_PER_CALL], self._ended[_RETURNS_PER_CALL:]
        for leases in self._by_life.values():
            while leases and len(ended) < _RETURNS_PER_REQUEST:
                lease = next(iter(leases.values()))
                if lease.ends_at > now:
                    break
                self._pop(lease.hit.key)
                ended.append(lease)
        return _corrections(ended)

    def _put(self, lease: Lease) -> None:
        """Add a lease, which replaces the previous lease of its key. A full table drops its oldest lease."""
        key = lease.hit.key
        replaced = [self._pop(key)]
        if len(self._by_key) >= MAX_KEYS:
            replaced.append(self._pop(next(iter(self._by_key))))
        self._ended += [lease for lease in replaced if lease and lease.unused > 0]
        self._by_key[key] = self._by_life.setdefault(_life(lease.hit.limit), {})[key] = lease

    def _pop(self, key: str) -> Lease | None:
        lease = self._by_key.pop(key, None)
        if lease is not None:
            del self._by_life[_life(lease.hit.limit)][key]
        return lease


def _life(limit: Limit) -> int:
    return max(1, limit.quota.period_us // _LEASES_PER_PERIOD)


def _corrections(leases: Iterable[Lease]) -> list[Correction]:
    """Build the corrections that return the unused parts of leases. Each part is returned once."""
    corrections = []
    for lease in leases:
        if lease.unused > 0:
            limit, key, share = lease.hit
            corrections.append(Correction(limit, key, lease.unused, Charge(lease.decision.at_us, share)))
            lease.unused = 0
    return corrections
