"""Leases: a process takes a share of a busy key's quota in one call, and consumes the share without asking the store.

The store counts a share when it is taken, so all processes together never exceed the limit, even when one crashes.
A lease ends after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get
small. The next request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.

A hit that no lease covers goes into the one call of its request, or a share goes in its place. When the store rejects
the request, leases get back what it has consumed from them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ..clock import Clock
from ..decision import Decision, Hit
from ..errors import StoreError
from ..forksafe import create_lock
from ..receipt import Correction
from ..stores import Store
from .lease_table import Lease, LeaseTable
from .link import ChainLink

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


class _Request:
    """The hits of one request, each with its decision once it is known."""

    __slots__ = ("decisions", "hits", "returns", "shares", "taken")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self.decisions: dict[int, Decision] = {}
        self.taken: dict[int, Lease] = {}  # the leases that have served a hit, by its position
        self.shares: dict[int, Lease] = {}  # the leases whose share takes the place of a hit
        self.returns: list[Correction] = []  # of other leases, to send before

    @property
    def asked(self) -> list[Hit]:
        """The hits that the store must decide, or the shares in their place."""
        places = (i for i in range(len(self.hits)) if i not in self.taken)
        return [self.shares[i].hit if i in self.shares else self.hits[i] for i in places]

    @property
    def result(self) -> list[Decision]:
        return [self.decisions[i] for i in range(len(self.hits))]


class QuotaLeases(ChainLink):
    """Serves hits from leases. ``clock`` is the limiter's time, ``now`` the time that it gives to the store if any."""

    def __init__(self, store: Store, clock: Clock, now: Callable[[], int | None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = now
        self._lock = create_lock(self, "_lock", threading.Lock, QuotaLeases._after_fork)
        self._table = LeaseTable()
        self._calls: set[asyncio.Future[StoreError | None]] = set()

    def _after_fork(self, _intact: bool) -> None:
        self._table = LeaseTable()  # the shares belong to the parent

    def apply_one(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Serve one hit of a request from its lease. None when there is no lease that covers it."""
        now = self._clock()
        with self._lock:
            return self._table.consume((limit, key, cost), now)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return self.store.apply(hits, now, consume)
        request = self._begin(hits)
        with self._undoing(request):
            if request.returns:
                self.store.correct(request.returns, now)
            while len(request.decisions) < len(hits):
                self._learn(request, self.store.apply(request.asked, now))
        return request.result

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return await self.store.aapply(hits, now, consume)
        request = self._begin(hits)
        if request.shares or request.returns:
            await self._complete(self._adecide(request, now))
        elif len(request.decisions) < len(hits):
            await self._adecide(request, now)
        return request.result

    async def _adecide(self, request: _Request, now: int | None) -> None:
        with self._undoing(request):
            if request.returns:
                await self.store.acorrect(request.returns, now)
            while len(request.decisions) < len(request.hits):
                self._learn(request, await self.store.aapply(request.asked, now))

    async def _complete(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a call in a task of its own, so that no share is lost when the caller is cancelled."""
        task = asyncio.ensure_future(_error_of(call))
        self._calls.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self._calls.discard)
        if error := await asyncio.shield(task):
            raise error

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
        with self._lock:
            self._table.forget(keys)

    def _close_leases(self) -> list[list[Correction]]:
        with self._lock:
            returns = self._table.return_all()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _begin(self, hits: Sequence[Hit]) -> _Request:
        """Consume what leases cover. Choose the shares that take the place of other hits."""
        request, table, now = _Request(hits), self._table, self._clock()
        with self._lock:
            for i, hit in enumerate(hits):
                if hit[0].lease and (decision := table.consume(hit, now)):
                    request.decisions[i], request.taken[i] = decision, table.by_key[hit[1]]
            if len(request.taken) < len(hits):
                for i, hit in enumerate(hits):
                    if i not in request.taken and (lease := table.take_share(hit, now)):
                        request.shares[i] = lease
                request.returns = table.returns(now, _RETURNS_PER_REQUEST)
        return request

    def _learn(self, request: _Request, replies: Sequence[Decision]) -> None:
        """Record the decisions of the store. When it has rejected a share, the hits themselves are next."""
        now, taken, shares = self._clock(), request.taken, request.shares
        places = [i for i in range(len(request.hits)) if i not in taken]
        with self._lock:
            for i, reply in zip(places, replies, strict=True):
                if lease := shares.get(i):
                    # The next share is at most half of the remaining quota.
                    lease.next_share, lease.busy_until = reply.remaining // 2, now
            is_allowed = all(reply.allowed or reply.shadow for reply in replies)
            if not all(reply.allowed for i, reply in zip(places, replies, strict=True) if i in shares):
                request.shares = {}
                return
            for i, reply in zip(places, replies, strict=True):
                hit = request.hits[i]
                if (lease := shares.get(i)) and is_allowed:
                    self._table.begin(lease, reply, now)
                    reply = lease.consume(hit, now)
                request.decisions[i] = reply
                reply.hit = hit
            if not is_allowed:
                for i, lease in taken.items():
                    self._table.put_back(lease, request.hits[i])
                    request.decisions[i] = lease.decide(request.hits[i], now)

    @contextmanager
    def _undoing(self, request: _Request) -> Iterator[None]:
        """Put back what a request has consumed from leases when its call fails or is cancelled."""
        try:
            yield
        except BaseException:
            with self._lock:
                for i, lease in request.taken.items():
                    self._table.put_back(lease, request.hits[i])
            raise


async def _error_of(call: Coroutine[Any, Any, None]) -> StoreError | None:
    """Return the error of a call, also when no caller is left to raise it to."""
    try:
        await call
    except StoreError as error:
        return error
    return None
