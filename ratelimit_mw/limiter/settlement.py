"""Changes to a verdict after its decision: refund, settle, hold its slots, conclude.

This module works out how much each hit must have consumed. The store that counted the hit makes the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import now_us
from ..decision import Verdict
from ..errors import StoreError
from ..quota import checked_cost
from ..receipt import Correction, PendingCorrection
from ..stores import Store
from .failover import NotAskedError
from .heartbeat import Heartbeat

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

_RETRY_EVERY: Final = 0.5  # seconds between two tries to return a slot
_MAX_UNRETURNED: Final = 10_000

Due = Callable[["Limit"], int | None]
"""The cost that a hit of a limit must have consumed in the end; None leaves the hit unchanged."""


class _UnreturnedSlot(NamedTuple):
    """A slot that the store did not take back yet; it expires at ``until``."""

    correction: Correction
    until: int


class Settlement:
    """Changes what verdicts have consumed in ``store``. ``statuses`` returns the outcomes of a rule that count.

    ``statuses`` returns None for a rule that counts every outcome.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], int | None],
        statuses: Callable[[str], frozenset[int] | None],
    ) -> None:
        self._store = store
        self._now = now
        self._statuses = statuses
        self._slots = Heartbeat(self._renew)
        self._returns = Heartbeat(self._return, _RETRY_EVERY)
        self._abandoned: set[asyncio.Future[None]] = set()

    def refund(self, verdict: Verdict) -> None:
        self._slots.release(verdict)
        self._correct(verdict, lambda _: 0)

    async def arefund(self, verdict: Verdict) -> None:
        self._slots.release(verdict)
        await self._acorrect(verdict, lambda _: 0)

    def settle(self, verdict: Verdict, cost: int) -> None:
        self._correct(verdict, _rates_cost(checked_cost(cost)))

    async def asettle(self, verdict: Verdict, cost: int) -> None:
        await self._acorrect(verdict, _rates_cost(checked_cost(cost)))

    def hold(self, verdict: Verdict) -> None:
        if any(decision.quota.concurrent for decision in verdict.decisions):
            self._slots.hold(verdict)

    async def keep_slots(self, decision: Awaitable[Verdict]) -> Verdict:
        """Return the verdict. When the caller is cancelled meanwhile, return the slots once the store has decided."""
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
        self._slots.release(verdict)
        self._correct(verdict, self._outcome_cost(verdict, status))

    async def aconclude(self, verdict: Verdict, status: int | None) -> None:
        self._slots.release(verdict)
        await self._acorrect(verdict, self._outcome_cost(verdict, status))

    def close(self) -> None:
        self._slots.close()
        self._returns.close()

    def _outcome_cost(self, verdict: Verdict, status: int | None) -> Due:
        def due(limit: Limit) -> int | None:
            statuses = self._statuses(limit.rule)
            counts = statuses is None or status is None or status in statuses
            return verdict.true_cost if counts and not limit.quota.concurrent else 0

        return due

    def _correct(self, verdict: Verdict, due: Due) -> None:
        if pending := verdict.receipt.corrections(due):
            try:
                times = self._store.correct([each.correction for each in pending], self._now())
            except StoreError as error:
                self._keep_pending(verdict, pending, error)
            else:
                verdict.receipt.confirm(pending, times)

    async def _acorrect(self, verdict: Verdict, due: Due) -> None:
        if pending := verdict.receipt.corrections(due):
            try:
                times = await self._store.acorrect([each.correction for each in pending], self._now())
            except StoreError as error:
                self._keep_pending(verdict, pending, error)
            else:
                verdict.receipt.confirm(pending, times)

    def _keep_pending(self, verdict: Verdict, pending: Sequence[PendingCorrection], error: StoreError) -> None:
        """A correction that was not sent may be sent later. A slot is returned by its id, so it is sent again."""
        if isinstance(error, NotAskedError):
            verdict.receipt.cancel(pending)
        for _, _, correction in pending:
            if correction.limit.quota.concurrent and len(self._returns) < _MAX_UNRETURNED:
                self._returns.hold(_UnreturnedSlot(correction, now_us() + SLOT_LIFE))

    def _renew(self, verdict: Verdict) -> None:
        with suppress(StoreError):  # the circuit breaker logs it
            self._store.correct(verdict.receipt.renewals(), self._now())

    def _return(self, slot: _UnreturnedSlot) -> None:
        try:
            self._store.correct([slot.correction], self._now())
        except StoreError:
            if now_us() < slot.until:
                return
        self._returns.release(slot)


def _rates_cost(cost: int) -> Due:
    """The true cost for rates; slots are not a matter of cost."""
    return lambda limit: None if limit.quota.concurrent else cost
