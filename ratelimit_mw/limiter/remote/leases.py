"""Decisions without the store: ``Leases`` serves hits on busy keys from the shares that this process has taken.

A process takes a share of a busy key's quota in one call, and consumes the share without asking the store. The store
counts a share when it is taken, so all processes together never exceed the limit, even when one crashes. A lease ends
after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get small. The next
request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.

A hit that no lease serves goes into the one call of its request, or a share goes in its place. When the store rejects
the request, leases get back what it has consumed from them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...clock import Clock
from ...decision import Charge, Correction, Decision, Hit, Limit
from ...forksafe import create_lock

MAX_KEYS: Final = 10_000
_LEASES_PER_PERIOD: Final = 20
_LAPSED: Final = -(1 << 62)  # ``unused`` of a share that the store no longer counts
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

    def serve(self, hit: tuple[Limit, str, int], now: int) -> Decision | None:
        """Take the cost of a hit; None when the lease cannot. Two limits of different plans may count under one key."""
        if hit[2] > self.unused or now >= self.ends_at or hit[0] is not self.hit[0]:
            return None
        return self.consume(hit, now)

    def consume(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Take the cost of a hit. The decision is derived from the store's decision."""
        self.unused -= hit[2]
        return self.look(hit, now)

    def look(self, hit: tuple[Limit, str, int], now: int) -> Decision:
        """Return the decision on a hit for the current state of the lease."""
        counted = self.decision
        rest, reset = counted.remaining + self.unused, counted.reset_us - now + self.taken_at
        decision = Decision(True, rest if rest > 0 else 0, 0, reset if reset > 0 else 0, counted.at_us)
        decision.hit = hit
        return decision


@dataclass(slots=True, eq=False)
class LeasedRequest:
    """The hits of one request: those that leases serve, and those that go into the call of the store."""

    hits: Sequence[Hit]
    result: list[Decision] = field(default_factory=list)
    """The decisions on all hits, in their order; empty until they are known."""
    served: list[tuple[Lease, Decision] | None] = field(default_factory=list)
    """The lease and the decision of each hit, None for a hit that the store decides."""
    asked: list[Hit] = field(default_factory=list)
    """The hits for the store."""
    shares: dict[int, Lease] = field(default_factory=dict)
    """The leases whose share takes the place of a hit, by its position in ``asked``."""
    returns: list[Correction] = field(default_factory=list)
    """The corrections that return other leases, to send before."""

    @property
    def hits_asked(self) -> list[Hit]:
        """The hits of ``asked``, without shares in their place."""
        return [hit for hit, here in zip(self.hits, self.served, strict=True) if here is None]

    def merge(self, replies: Iterable[Decision]) -> None:
        """Put the local decisions and those of the store into the order of the hits."""
        following = iter(replies)
        self.result = [here[1] if here else next(following) for here in self.served]


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
            return None if lease is None else lease.serve((limit, key, cost), self._clock())

    def begin(self, hits: Sequence[Hit], is_away: bool) -> LeasedRequest:
        """Serve hits from leases. Choose what to ask for the others. While the store ``is_away``, return no lease."""
        request = LeasedRequest(hits)
        with self._lock:
            now = self._clock()
            for hit in hits:
                lease = self._by_key.get(hit[1]) if hit[0].lease else None
                decision = None if lease is None else lease.serve(hit, now)
                request.served.append((lease, decision) if lease and decision else None)
            if None not in request.served:
                request.merge(())
                return request
            for hit in request.hits_asked:
                if share := self._take_share(hit, now):
                    request.shares[len(request.asked)] = share
                    hit = share.hit
                request.asked.append(hit)
            request.returns = [] if is_away else self._take_ended(now)
        return request

    def learn(self, request: LeasedRequest, replies: list[Decision]) -> None:
        """Build the decisions of a request. When the store has rejected a share, ask for the hits themselves."""
        is_allowed = True
        for reply in replies:
            if not reply.allowed and not reply.hit[0].shadow:
                is_allowed = False
        if not is_allowed or request.shares:
            now = self._clock()
            with self._lock:
                if request.shares and not self._fill(request, replies, is_allowed, now):
                    request.asked, request.shares = request.hits_asked, {}
                    return
                if not is_allowed:
                    self._put_back(request)
                    for i, here in enumerate(request.served):
                        if here:
                            request.served[i] = here[0], here[0].look(request.hits[i], now)
        request.merge(replies)

    def undo(self, request: LeasedRequest) -> None:
        """Put back what a request has consumed here, after its call has failed or was cancelled."""
        with self._lock:
            self._put_back(request)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        with self._lock:
            for lease in filter(None, map(self._pop, keys)):
                lease.unused = _LAPSED

    def return_all(self) -> list[list[Correction]]:
        """End all leases. Build the corrections that return them, in groups for one call each."""
        with self._lock:
            returns = _corrections([*self._ended, *self._by_key.values()])
            self._start_over()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _take_share(self, hit: Hit, now: int) -> Lease | None:
        """Add the lease whose share takes the place of a hit. None when such a share would save no call."""
        if not hit.limit.lease:
            return None
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

    def _fill(self, request: LeasedRequest, replies: list[Decision], is_allowed: bool, now: int) -> bool:
        """Fill the leases of an allowed request, and serve its hits. False when the store has rejected a share."""
        hits, are_taken = request.hits_asked, True
        for i, lease in request.shares.items():
            # The next share is at most half of the remaining quota.
            lease.next_share, lease.busy_until = replies[i].remaining // 2, now
            are_taken = are_taken and replies[i].allowed
        for i, lease in request.shares.items() if are_taken else ():
            if is_allowed:
                lease.unused, lease.decision = lease.hit.cost, replies[i]
                current = self._by_key.get(lease.hit.key)
                if current is None:  # the call took longer than the lease's life
                    self._put(lease)
                elif current is not lease:
                    self._ended.append(lease)
                replies[i] = lease.consume(hits[i], now)
            replies[i].hit = hits[i]
        return are_taken

    def _put_back(self, request: LeasedRequest) -> None:
        """Put back what a request has consumed here."""
        for hit, here in zip(request.hits, request.served, strict=True):
            if here:
                here[0].unused += hit.cost
                if self._by_key.get(hit.key) is not here[0]:
                    self._ended.append(here[0])

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
