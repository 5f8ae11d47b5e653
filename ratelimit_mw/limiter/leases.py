"""Decisions without the store: ``QuotaLeases`` serves busy keys from leases, or from accounts that are reported later.

A process takes a share of a busy key's quota in one call, and consumes the share without asking the store. The store
counts a share when it is taken, so all processes together never exceed the limit, even when one crashes. A lease ends
after a twentieth of the period, so consumption is late by at most that time. Near the limit shares get small. The next
request that asks the store returns the unused part of an ended lease; ``close`` returns the rest.

A hit that is not served here goes into the one call of its request, or a share goes in its place. When the store
rejects the request, leases and accounts get back what it has consumed from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ..decision import Decision, Hit
from ..errors import StoreError
from ..receipt import Correction
from .lease_table import Lease, LeaseTable
from .report_table import Account
from .reporter import Reporter

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_RETURNS_PER_REQUEST: Final = 4  # more than a request takes, so that ended leases do not pile up
_RETURNS_PER_CALL: Final = 100  # when no request waits


class _Request:
    """The hits of one request, by their position, with their leases and accounts."""

    __slots__ = ("accounts", "hits", "result", "returns", "shares", "taken")

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = hits
        self.taken: dict[int, tuple[Lease | Account, Decision]] = {}  # the hits that are served here
        self.shares: dict[int, Lease] = {}  # the leases whose share takes the place of a hit
        self.accounts: dict[int, Account] = {}  # those of hits that the store decides
        self.returns: list[Correction] = []  # of other leases, to send before
        self.result: list[Decision] = []

    @property
    def places(self) -> list[int]:
        """The hits that the store must decide."""
        return [i for i in range(len(self.hits)) if i not in self.taken]

    @property
    def asked(self) -> list[Hit]:
        return [self.shares[i].hit if i in self.shares else self.hits[i] for i in self.places]


class QuotaLeases(Reporter):
    """Serves hits from leases and accounts, and asks the store for the others."""

    def _start_over(self) -> None:
        super()._start_over()
        self._leases = LeaseTable()  # after a fork, the shares belong to the parent
        self._calls: set[asyncio.Future[StoreError | None]] = set()

    def apply_one(self, limit: Limit, key: str, cost: int) -> Decision | None:
        """Decide the one hit of a request. None when the store must decide it."""
        if not (limit.lease or limit.reports):
            return None
        now = self._clock()
        with self._lock:
            return (self._leases if limit.lease else self._reports).consume((limit, key, cost), now)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return self.store.apply(hits, now, consume)
        if late := self._reports.accounts and self._reports.late(hits, self._clock()):
            self.report(late)
        request = self._begin(hits)
        if not request.result:
            with self._undoing(request):
                if request.returns:
                    self.store.correct(request.returns, now)
                while not request.result:
                    self._learn(request, self.store.apply(request.asked, now))
        return request.result

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        if not consume:
            return await self.store.aapply(hits, now, consume)
        if late := self._reports.accounts and self._reports.late(hits, self._clock()):
            await self._complete(self.areport(late))
        request = self._begin(hits)
        if not request.result:
            call = self._adecide(request, now)
            await (self._complete(call) if request.shares or request.returns else call)
        return request.result

    async def _adecide(self, request: _Request, now: int | None) -> None:
        with self._undoing(request):
            if request.returns:
                await self.store.acorrect(request.returns, now)
            while not request.result:
                self._learn(request, await self.store.aapply(request.asked, now))

    async def _complete(self, call: Coroutine[Any, Any, None]) -> None:
        """Await a call in a task of its own: no share or sum is lost when the caller is cancelled."""
        task = asyncio.ensure_future(_error_of(call))
        self._calls.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self._calls.discard)
        if error := await asyncio.shield(task):
            raise error

    def close(self) -> None:
        """Return all shares, report the rest and close the store. Without a reply of the store they are lost."""
        with suppress(StoreError):
            for changes in self._close_leases():
                self.store.correct(changes, self._now())
        super().close()

    async def aclose(self) -> None:
        with suppress(StoreError):
            for changes in self._close_leases():
                await self.store.acorrect(changes, self._now())
        await super().aclose()

    def forget_here(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        super().forget_here(keys)
        with self._lock:
            self._leases.forget(keys)

    def _close_leases(self) -> list[list[Correction]]:
        with self._lock:
            returns = self._leases.return_all()
        return [returns[i : i + _RETURNS_PER_CALL] for i in range(0, len(returns), _RETURNS_PER_CALL)]

    def _begin(self, hits: Sequence[Hit]) -> _Request:
        """Serve hits here. Choose what goes into the call for the others: shares, and hits that open an account."""
        request, now = _Request(hits), self._clock()
        leases, reports, taken = self._leases, self._reports, request.taken
        with self._lock:
            for i, hit in enumerate(hits):
                if hit[0].lease:
                    if decision := leases.consume(hit, now):
                        taken[i] = leases.by_key[hit[1]], decision
                elif hit[0].reports and (decision := reports.consume(hit, now)):
                    taken[i] = reports.accounts[hit[1]], decision
            rejections = [decision for _, decision in taken.values() if not decision.allowed]
            if rejections:
                self._put_back(request)
            elif len(taken) < len(hits):
                for i in request.places:
                    if lease := leases.take_share(hits[i], now):
                        request.shares[i] = lease
                    elif hits[i][0].reports and (account := reports.ask(hits[i], now)):
                        request.accounts[i] = account
                request.returns = leases.returns(now, _RETURNS_PER_REQUEST)
                return request
        request.result = rejections or [decision for _, decision in taken.values()]
        return request

    def _learn(self, request: _Request, replies: Sequence[Decision]) -> None:
        """Build the decisions of a request. When the store has rejected a share, ask for the hits themselves."""
        now, hits, shares = self._clock(), request.hits, request.shares
        by_place = dict(zip(request.places, replies, strict=True))
        is_allowed = all(reply.allowed or reply.shadow for reply in replies)
        with self._lock:
            for i, lease in shares.items():
                # The next share is at most half of the remaining quota.
                lease.next_share, lease.busy_until = by_place[i].remaining // 2, now
            if not all(by_place[i].allowed for i in shares):
                request.shares = {}
                return
            for i, lease in shares.items():
                if is_allowed:
                    self._leases.begin(lease, by_place[i], now)
                    by_place[i] = lease.consume(hits[i], now)
                by_place[i].hit = hits[i]
            for i, account in request.accounts.items():
                self._reports.learn(account, hits[i][2], by_place[i], is_allowed, now)
                if account.fresh_until:
                    self._beat.hold(self._reports)
            if not is_allowed:
                self._put_back(request)
            here = {
                i: decision if is_allowed else holder.look(hits[i], now)
                for i, (holder, decision) in request.taken.items()
            }
        request.result = [by_place[i] if i in by_place else here[i] for i in range(len(hits))]

    def _put_back(self, request: _Request) -> None:
        """Put back what a request has consumed here."""
        for i, (holder, decision) in request.taken.items():
            if not decision.allowed:
                continue
            if isinstance(holder, Lease):
                self._leases.put_back(holder, request.hits[i])
            else:
                self._reports.put_back(holder, request.hits[i])

    @contextmanager
    def _undoing(self, request: _Request) -> Iterator[None]:
        """Put back what a request has consumed here when its call fails or is cancelled."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._put_back(request)
                for i, account in request.accounts.items():
                    self._reports.learn(account, request.hits[i][2], None, False, self._clock())
            raise


async def _error_of(call: Coroutine[Any, Any, None]) -> StoreError | None:
    """Return the error of a call, also when no caller is left to raise it to."""
    try:
        await call
    except StoreError as error:
        return error
    return None
