"""Decisions without the store: ``QuotaLeases`` serves busy keys from leases.

A process takes a share of a busy key's quota in one call, and consumes the share without asking the store. The store
counts a share when it is taken, so all processes together never exceed the limit, even when one crashes. A lease ends
after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get small. The next
request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.

A hit that no lease serves goes into the one call of its request, or a share goes in its place. When the store rejects
the request, leases get back what it has consumed from them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ...clock import Clock
from ...decision import Decision, Hit
from ...errors import StoreError
from ...forksafe import create_lock
from ...receipt import Correction
from ...stores import Store
from ...stores.blocking import Call, async_call, blocking_call, run_blocking
from .lease_table import Lease, LeaseTable
from .link import ChainLink

if TYPE_CHECKING:
    from ...algorithms.limit import Limit

_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


class _Request:
    """The hits of one request: those that leases serve, and those that go into the call of the store."""

    __slots__ = ("asked", "hits", "result", "returns", "served", "shares")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self.result: list[Decision] = []
        self.served: list[tuple[Lease, Decision] | None] = []  # by position; None for the store
        self.asked: list[Hit] = []
        self.shares: dict[int, Lease] = {}  # by position in ``asked``: the leases whose share takes the place of a hit
        self.returns: list[Correction] = []  # Of other leases, to send before.

    @property
    def hits_asked(self) -> list[Hit]:
        """The hits of ``asked``, without shares in their place."""
        return [hit for hit, here in zip(self.hits, self.served, strict=True) if here is None]


class QuotaLeases(ChainLink):
    """Serves hits from leases, and asks the store for the others. ``now`` returns the time to pass to it, or None."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], int | None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = now
        self._lock = create_lock(self, "_lock", threading.Lock, lambda own, _: own._start_over())
        self._start_over()

    def _start_over(self) -> None:
        self._leases = LeaseTable()  # after a fork, the shares belong to the parent
        self._calls: set[asyncio.Future[StoreError | None]] = set()

    def apply_one(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Decide the one hit of a request. None when the store must decide it."""
        if not limit.lease:
            return None
        with self._lock:
            lease = self._leases.by_key.get(key)
            return None if lease is None else lease.serve((limit, key, cost), self._clock())

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return self.store.apply(hits, now, consume)
        request = self._begin(hits)
        if not request.result:
            run_blocking(self._decide(blocking_call, request, now))
        return request.result

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return await self.store.aapply(hits, now, consume)
        request = self._begin(hits)
        if request.shares or request.returns:
            await self._complete(self._decide(async_call, request, now))
        elif not request.result:
            await self._decide(async_call, request, now)
        return request.result

    async def _decide(self, call: Call, request: _Request, now: int | None) -> None:
        try:
            if request.returns:
                await call(self.store, "correct", request.returns, now)
            while not request.result:
                self._learn(request, await call(self.store, "apply", request.asked, now))
        except BaseException:
            with self._lock:
                self._put_back(request)
            raise

    async def _complete(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a call in a task of its own: no share is lost when the caller is cancelled."""
        task = asyncio.ensure_future(_error_of(call))
        self._calls.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self._calls.discard)
        if error := await asyncio.shield(task):
            raise error

    def close(self) -> None:
        """Return all shares, and close the store. If the store does not reply, they are lost."""
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
        with self._lock:
            self._leases.forget(keys)

    def _close_leases(self) -> list[list[Correction]]:
        with self._lock:
            returns = self._leases.return_all()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _begin(self, hits: Sequence[Hit]) -> _Request:
        """Serve hits from leases. Choose what goes into the call for the others: a share, or the hit itself."""
        request = _Request(hits)
        served = request.served
        with self._lock:
            now = self._clock()
            for hit in hits:
                here = None
                if hit[0].lease:
                    lease = self._leases.by_key.get(hit[1])
                    if lease is not None and (decision := lease.serve(hit, now)):
                        here = lease, decision
                served.append(here)
            if None in served:
                self._choose(request, now)
            else:
                request.result = [here[1] for here in served if here]
        return request

    def _choose(self, request: _Request, now: int) -> None:
        """Fill the call of a request."""
        asked = request.asked
        for hit in request.hits_asked:
            if hit[0].lease and (lease := self._leases.take_share(hit, now)):
                request.shares[len(asked)] = lease
                hit = lease.hit
            asked.append(hit)
        request.returns = self._leases.returns(now, _RETURNS_PER_REQUEST)

    def _learn(self, request: _Request, replies: list[Decision]) -> None:
        """Build the decisions of a request. When the store has rejected a share, ask for the hits themselves."""
        is_allowed = True
        for reply in replies:
            if not reply.allowed and not reply.hit[0].shadow:
                is_allowed = False
        if is_allowed and not request.shares:
            self._merge(request, replies)
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
            self._merge(request, replies)

    def _begin_leases(self, request: _Request, replies: list[Decision], is_allowed: bool, now: int) -> bool:
        """Fill the leases of an allowed request, and serve its hits. False when the store has rejected a share."""
        hits, are_taken = request.hits_asked, True
        for i, lease in request.shares.items():
            # The next share is at most half of the remaining quota.
            lease.next_share, lease.busy_until = replies[i].remaining // 2, now
            are_taken = are_taken and replies[i].allowed
        for i, lease in request.shares.items() if are_taken else ():
            if is_allowed:
                self._leases.begin(lease, replies[i], now)
                replies[i] = lease.consume(hits[i], now)
            replies[i].hit = hits[i]
        return are_taken

    @staticmethod
    def _merge(request: _Request, replies: Iterable[Decision]) -> None:
        """Put the local decisions and those of the store into the order of the hits."""
        following = iter(replies)
        request.result = [here[1] if here else next(following) for here in request.served]

    def _put_back(self, request: _Request) -> None:
        """Put back what a request has consumed here."""
        for hit, here in zip(request.hits, request.served, strict=True):
            if here:
                self._leases.put_back(here[0], hit)


async def _error_of(call: Coroutine[Any, Any, None]) -> StoreError | None:
    """Return the error of a call, even when no caller is left to raise it to."""
    try:
        await call
    except StoreError as error:
        return error
    return None
