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
from typing import Final

from ...clock import Clock
from ...decision import Charge, Correction, Decision, Hit, Limit
from ...forksafe import create_lock

MAX_KEYS: Final = 10_000
_LEASES_PER_PERIOD: Final = 20
_LAPSED: Final = -(1 << 62)  # ``unused`` of a share that the store no longer counts
_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


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


class SeenKeys:
    """The last hit of each key. Bounded."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def is_busy(self, key: str, now: int, span: int) -> bool:
        """Record a hit. Return True when the last one of its key was at most ``span`` ago."""
        last_seen = self._seen.get(key)
        if len(self._seen) >= MAX_KEYS:
            self._seen.clear()
        self._seen[key] = now
        return last_seen is not None and now - last_seen <= span


class LeaseTable:
    """The leases of this process, and the shares to take. Bounded. The caller holds a lock."""

    def __init__(self) -> None:
        self.by_key: dict[str, Lease] = {}
        self._by_life: dict[int, dict[str, Lease]] = {}  # leases of one life end in the order in which they began
        self._seen = SeenKeys()
        self._ended: list[Lease] = []  # no longer in the table, with a part to return

    def take_share(self, hit: Hit, now: int) -> Lease | None:
        """Add the lease whose share takes the place of a hit. None when such a share would save no call."""
        share = self._share(hit, now)
        if share <= max(1, hit.cost):
            return None
        lease = Lease(hit, share, now)
        self._put(lease)
        return lease

    def begin(self, lease: Lease, decision: Decision, now: int) -> None:
        """Fill a lease: the store has counted its share."""
        lease.unused, lease.decision = lease.hit.cost, decision
        current = self.by_key.get(lease.hit.key)
        if current is None:  # the call took longer than the lease's life
            self._put(lease)
        elif current is not lease:
            self._ended.append(lease)

    def put_back(self, lease: Lease, hit: Hit) -> None:
        """Put the cost of a hit back into the lease that it was taken from."""
        lease.unused += hit.cost
        if self.by_key.get(hit.key) is not lease:
            self._ended.append(lease)

    def returns(self, now: int, most: int) -> list[Correction]:
        """Build the corrections that return replaced leases and up to ``most`` leases that have ended."""
        ended, self._ended = self._ended, []
        for leases in self._by_life.values():
            while leases and len(ended) < most and (lease := next(iter(leases.values()))).ends_at <= now:
                self._pop(lease.hit.key)
                ended.append(lease)
        return _corrections(ended)

    def return_all(self) -> list[Correction]:
        """Empty the table. Build the corrections that return all leases."""
        returns = _corrections([*self._ended, *self.by_key.values()])
        self.by_key, self._by_life, self._ended = {}, {}, []
        return returns

    def forget(self, keys: Iterable[str]) -> None:
        """Drop leases without returning them: after a reset the store no longer counts them."""
        for key in keys:
            if lease := self._pop(key):
                lease.unused = _LAPSED

    def _put(self, lease: Lease) -> None:
        """Add a lease, which replaces the previous lease of its key. A full table drops its oldest lease."""
        key = lease.hit.key
        replaced = [self._pop(key)]
        if len(self.by_key) >= MAX_KEYS:
            replaced.append(self._pop(next(iter(self.by_key))))
        self._ended += filter(None, replaced)
        self.by_key[key] = self._by_life.setdefault(_life(lease.hit.limit), {})[key] = lease

    def _pop(self, key: str) -> Lease | None:
        lease = self.by_key.pop(key, None)
        if lease is not None:
            del self._by_life[_life(lease.hit.limit)][key]
        return lease

    def _share(self, hit: Hit, now: int) -> int:
        """Return the share to take: 0 if the key is not busy, a call is under way, or its lease has another limit."""
        if not (hit.limit.lease and self._seen.is_busy(hit.key, now, _life(hit.limit))):
            return 0
        last = self.by_key.get(hit.key)
        if last is None or last.ends_at <= now:
            return hit.limit.lease
        return min(last.next_share, hit.limit.lease) if last.busy_until <= now and last.hit.limit is hit.limit else 0


class LeasedRequest:
    """The hits of one request: those that leases serve, and those that go into the call of the store."""

    __slots__ = ("asked", "hits", "result", "returns", "served", "shares")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self.result: list[Decision] = []
        """The decisions on all hits, in their order; empty until they are known."""
        self.served: list[tuple[Lease, Decision] | None] = []  # by position; None for the store
        self.asked: list[Hit] = []
        self.shares: dict[int, Lease] = {}  # by position in ``asked``: the leases whose share takes the place of a hit
        self.returns: list[Correction] = []  # Of other leases, to send before.

    @property
    def hits_asked(self) -> list[Hit]:
        """The hits of ``asked``, without shares in their place."""
        return [hit for hit, here in zip(self.hits, self.served, strict=True) if here is None]


class Leases:
    """The leases of this process. It makes no calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._start_over()

    def _start_over(self) -> None:
        self._table = LeaseTable()  # after a fork, the shares belong to the parent

    def serve(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Decide the one hit of a request. None when the store must decide it."""
        with self._lock:
            lease = self._table.by_key.get(key)
            return None if lease is None else lease.serve((limit, key, cost), self._clock())

    def begin(self, hits: Sequence[Hit]) -> LeasedRequest:
        """Serve hits from leases. Choose what goes into the call for the others: a share, or the hit itself."""
        request = LeasedRequest(hits)
        served = request.served
        with self._lock:
            now = self._clock()
            for hit in hits:
                here = None
                if hit[0].lease:
                    lease = self._table.by_key.get(hit[1])
                    if lease is not None and (decision := lease.serve(hit, now)):
                        here = lease, decision
                served.append(here)
            if None in served:
                self._choose(request, now)
            else:
                request.result = [here[1] for here in served if here]
        return request

    def learn(self, request: LeasedRequest, replies: list[Decision]) -> None:
        """Build the decisions of a request. When the store has rejected a share, ask for the hits themselves."""
        is_allowed = True
        for reply in replies:
            if not reply.allowed and not reply.hit[0].shadow:
                is_allowed = False
        if is_allowed and not request.shares:
            _merge(request, replies)
            return
        now = self._clock()
        with self._lock:
            if request.shares and not self._begin_leases(request, replies, is_allowed, now):
                request.asked, request.shares = request.hits_asked, {}
                return
            if not is_allowed:
                self._put_back(request)
                for i, here in enumerate(request.served):
                    if here:
                        request.served[i] = here[0], here[0].look(request.hits[i], now)
            _merge(request, replies)

    def undo(self, request: LeasedRequest) -> None:
        """Put back what a request has consumed here, after its call has failed or was cancelled."""
        with self._lock:
            self._put_back(request)

    def forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._table.forget(keys)

    def return_all(self) -> list[list[Correction]]:
        """End all leases. Build the corrections that return them, in groups for one call each."""
        with self._lock:
            returns = self._table.return_all()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _choose(self, request: LeasedRequest, now: int) -> None:
        """Fill the call of a request."""
        asked = request.asked
        for hit in request.hits_asked:
            if hit[0].lease and (lease := self._table.take_share(hit, now)):
                request.shares[len(asked)] = lease
                hit = lease.hit
            asked.append(hit)
        request.returns = self._table.returns(now, _RETURNS_PER_REQUEST)

    def _begin_leases(self, request: LeasedRequest, replies: list[Decision], is_allowed: bool, now: int) -> bool:
        """Fill the leases of an allowed request, and serve its hits. False when the store has rejected a share."""
        hits, are_taken = request.hits_asked, True
        for i, lease in request.shares.items():
            # The next share is at most half of the remaining quota.
            lease.next_share, lease.busy_until = replies[i].remaining // 2, now
            are_taken = are_taken and replies[i].allowed
        for i, lease in request.shares.items() if are_taken else ():
            if is_allowed:
                self._table.begin(lease, replies[i], now)
                replies[i] = lease.consume(hits[i], now)
            replies[i].hit = hits[i]
        return are_taken

    def _put_back(self, request: LeasedRequest) -> None:
        """Put back what a request has consumed here."""
        for hit, here in zip(request.hits, request.served, strict=True):
            if here:
                self._table.put_back(here[0], hit)


def _merge(request: LeasedRequest, replies: Iterable[Decision]) -> None:
    """Put the local decisions and those of the store into the order of the hits."""
    following = iter(replies)
    request.result = [here[1] if here else next(following) for here in request.served]


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
