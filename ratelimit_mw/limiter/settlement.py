"""What a limiter does about a verdict after it has decided: refund, settle, hold its slots, conclude.

What an outcome or a true cost makes of each hit is worked out here, and carried out where the hit was counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import now_us
from ..decision import Correction, Verdict
from ..quota import checked_cost
from ..receipt import PendingCorrection
from ..stores import Store
from .failover import FailoverStore
from .heartbeat import Heartbeat
from .rejection_cache import RejectionCache

__all__ = ["Settlement"]

_TRIES_EVERY: Final = 0.5  # seconds between one try to give a slot back and the next
_OWED_AT_MOST: Final = 10_000


class _Owed(NamedTuple):
    """A slot that a store did not take back when it was to; after ``until`` it has ended by itself."""

    change: Correction
    until: int


class Settlement:
    """``shared`` stands before a store that may fail. ``statuses`` tells which outcomes of a rule count, None all."""

    def __init__(
        self,
        store: Store,
        shared: FailoverStore | None,
        rejections: RejectionCache,
        now: Callable[[], int | None],
        statuses: Callable[[str], frozenset[int] | None],
    ) -> None:
        self._store = store
        self._shared = shared
        self._rejections = rejections
        self._now = now
        self._statuses = statuses
        self._keeper = Heartbeat(self._renew)
        self._returns = Heartbeat(self._return, _TRIES_EVERY)
        self._abandoned: set[asyncio.Future[None]] = set()

    def refund(self, verdict: Verdict) -> None:
        self._keeper.release(verdict)
        self._correct(verdict, [0] * len(verdict.hits))

    async def arefund(self, verdict: Verdict) -> None:
        self._keeper.release(verdict)
        await self._acorrect(verdict, [0] * len(verdict.hits))

    def settle(self, verdict: Verdict, cost: int) -> None:
        self._correct(verdict, _settled(verdict, checked_cost(cost)))

    async def asettle(self, verdict: Verdict, cost: int) -> None:
        await self._acorrect(verdict, _settled(verdict, checked_cost(cost)))

    def hold(self, verdict: Verdict) -> None:
        if any(limit.quota.concurrent for limit, _, _ in verdict.hits):
            self._keeper.hold(verdict)

    async def kept(self, decision: Awaitable[Verdict]) -> Verdict:
        """The verdict. Who is cancelled while the store decides never sees it, and keeps no slot that it has taken."""
        deciding = asyncio.ensure_future(decision)
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            abandoned = asyncio.ensure_future(self._abandon(deciding))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise

    async def _abandon(self, deciding: Awaitable[Verdict]) -> None:
        await self.aconclude(await deciding, None)

    def conclude(self, verdict: Verdict, status: int | None) -> None:
        self._keeper.release(verdict)
        self._correct(verdict, self._due(verdict, status))

    async def aconclude(self, verdict: Verdict, status: int | None) -> None:
        self._keeper.release(verdict)
        await self._acorrect(verdict, self._due(verdict, status))

    def close(self) -> None:
        self._keeper.close()
        self._returns.close()

    def _due(self, verdict: Verdict, status: int | None) -> list[int | None]:
        """What each hit should have consumed in the end; None: what it has."""
        due = []
        for limit, _, _ in verdict.hits:
            statuses = self._statuses(limit.rule)
            counts = statuses is None or status is None or status in statuses
            due.append(verdict.true_cost if counts and not limit.quota.concurrent else 0)
        return due

    def _renew(self, verdict: Verdict) -> None:
        self._carry_out(verdict, verdict.spending.renewals())

    def _correct(self, verdict: Verdict, due: Sequence[int | None]) -> None:
        noted = verdict.spending.changes(due)
        if noted:
            self._answered(verdict, noted, self._carry_out(verdict, [change for _, _, change in noted]))

    async def _acorrect(self, verdict: Verdict, due: Sequence[int | None]) -> None:
        if self._shared is None:
            self._correct(verdict, due)
            return
        noted = verdict.spending.changes(due)
        if noted:
            changes = [change for _, _, change in noted]
            self._answered(verdict, noted, await self._shared.acorrect(verdict.spending.store, changes, self._now()))

    def _answered(
        self, verdict: Verdict, noted: Sequence[PendingCorrection], times: Sequence[int | None] | None
    ) -> None:
        verdict.spending.answered(noted, times)
        self._rejections.forget([change.key for _, _, change in noted])
        for (_, _, change), at in zip(noted, times or repeat(None), strict=False):
            if at is None and change.limit.quota.concurrent and len(self._returns) < _OWED_AT_MOST:
                self._returns.hold(_Owed(change, now_us() + SLOT_LIFE))

    def _return(self, owed: _Owed) -> None:
        """Give a slot back once more: it goes by its id, so twice is as good as once."""
        assert self._shared is not None
        times = self._shared.correct(None, [owed.change], self._now())
        if (times and None not in times) or now_us() >= owed.until:
            self._returns.release(owed)

    def _carry_out(self, verdict: Verdict, changes: Sequence[Correction]) -> Sequence[int | None] | None:
        if self._shared is None:
            return self._store.correct(changes, self._now())
        return self._shared.correct(verdict.spending.store, changes, self._now())


def _settled(verdict: Verdict, cost: int) -> list[int | None]:
    """What each hit is to have consumed; slots are not a matter of cost."""
    return [None if limit.quota.concurrent else cost for limit, _, _ in verdict.hits]
