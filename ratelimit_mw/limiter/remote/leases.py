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
from ...decision import Correction, Decision, Hit, Limit
from ...forksafe import create_lock
from .lease_table import Lease, LeaseTable

_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


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
