"""``Settlement``: the half of a ``Limiter`` that changes verdicts after their decision.

It works out how much each hit must have consumed. The store that counted the hit makes the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import now_us
from ..decision import Decision, Verdict, build_verdict
from ..errors import StoreError
from ..keys.features import Features
from ..quota import checked_cost
from ..receipt import Correction, PendingCorrection
from ..stores import Store
from .failover import NotAskedError
from .heartbeat import Heartbeat

if TYPE_CHECKING:
    from ..algorithms.limit import Limit
    from ..rules.ruleset import RuleSet
    from .limiter import Limiter

_RETRY_EVERY: Final = 0.5  # seconds between two tries to return a slot
_MAX_UNRETURNED: Final = 10_000

Due = Callable[["Limit"], int | None]
"""The cost that a hit of a limit must have consumed in the end; None leaves the hit unchanged."""


class Settlement:
    """Refunds and settles verdicts, renews their slots and concludes their requests. ``Limiter`` inherits it."""

    rules: RuleSet
    _chain: Store
    _now: Callable[[], int | None]  # the time to give to the store, None for the store's own time

    def __init__(self) -> None:
        self._slots = Heartbeat(self._renew)
        self._returns = Heartbeat(self._return, _RETRY_EVERY)  # slots to return, each with the time when it expires
        self._abandoned: set[asyncio.Future[None]] = set()

    def refund(self, verdict: Verdict) -> None:
        """Return all of the cost that a verdict consumed. A second call changes nothing.

        Args:
            verdict: A verdict of ``hit``.
        """
        self._slots.release(verdict)
        self._correct(verdict, lambda _: 0)

    async def arefund(self, verdict: Verdict) -> None:
        """Async form of ``refund``."""
        self._slots.release(verdict)
        await self._acorrect(verdict, lambda _: 0)

    def settle(self, verdict: Verdict, cost: int) -> None:
        """Replace the cost that a verdict consumed by the true cost.

        A lower cost returns the difference. A higher cost charges the difference, even beyond the limit. Slots of
        concurrency rules are not changed.

        Args:
            verdict: A verdict of ``hit``.
            cost: The true cost in units of the limits, a whole number from 0 to 10**12.

        Raises:
            ConfigError: ``cost`` is not such a number.
        """
        self._correct(verdict, _rates_cost(checked_cost(cost)))

    async def asettle(self, verdict: Verdict, cost: int) -> None:
        """Async form of ``settle``."""
        await self._acorrect(verdict, _rates_cost(checked_cost(cost)))

    def hold(self, verdict: Verdict) -> None:
        """Renew the slots of a verdict until ``conclude``; adapters use it.

        Args:
            verdict: The verdict of an allowed request.
        """
        if any(decision.quota.concurrent for decision in verdict.decisions):
            self._slots.hold(verdict)

    def conclude(self, verdict: Verdict, status: int | None) -> None:
        """Return slots, apply the stated cost and undo costs that do not count; adapters call it after the response.

        Args:
            verdict: The verdict of the request.
            status: The HTTP status of the response. None means that the outcome is unknown: the cost stays consumed.
        """
        self._slots.release(verdict)
        self._correct(verdict, self._outcome_cost(verdict, status))

    async def aconclude(self, verdict: Verdict, status: int | None) -> None:
        """Async form of ``conclude``."""
        self._slots.release(verdict)
        await self._acorrect(verdict, self._outcome_cost(verdict, status))

    def close(self) -> None:
        """Return the unused part of leases and close the store. A second call changes nothing."""
        self._slots.close()
        self._returns.close()
        self._chain.close()

    async def aclose(self) -> None:
        """Async form of ``close``."""
        self._slots.close()
        self._returns.close()
        await self._chain.aclose()

    def _outcome_cost(self, verdict: Verdict, status: int | None) -> Due:
        def due(limit: Limit) -> int | None:
            statuses = self.rules.statuses(limit.rule)
            counts = statuses is None or status is None or status in statuses
            return verdict.true_cost if counts and not limit.quota.concurrent else 0

        return due

    async def _keep_slots(self, decisions: Awaitable[list[Decision]]) -> list[Decision]:
        """Return the decisions. If the caller is cancelled meanwhile, return the slots once the store has decided."""
        deciding = asyncio.ensure_future(decisions)
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            abandoned = asyncio.ensure_future(self._abandon(deciding))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise

    async def _abandon(self, deciding: Awaitable[list[Decision]]) -> None:
        await self.aconclude(build_verdict(await deciding), None)

    def _correct(self, verdict: Verdict, due: Due) -> None:
        if pending := verdict.receipt.corrections(due):
            with self._keeping_pending(verdict, pending):
                times = self._chain.correct([each.correction for each in pending], self._now())
                verdict.receipt.confirm(pending, times)

    async def _acorrect(self, verdict: Verdict, due: Due) -> None:
        if pending := verdict.receipt.corrections(due):
            with self._keeping_pending(verdict, pending):
                times = await self._chain.acorrect([each.correction for each in pending], self._now())
                verdict.receipt.confirm(pending, times)

    @contextmanager
    def _keeping_pending(self, verdict: Verdict, pending: Sequence[PendingCorrection]) -> Iterator[None]:
        """Keep what may be sent later when the store fails: corrections that were not sent, and slots by their id."""
        try:
            yield
        except StoreError as error:
            if isinstance(error, NotAskedError):
                verdict.receipt.cancel(pending)
            for _, _, correction in pending:
                if correction.limit.quota.concurrent and len(self._returns) < _MAX_UNRETURNED:
                    self._returns.hold((correction, now_us() + SLOT_LIFE))

    def _renew(self, verdict: Verdict) -> None:
        with suppress(StoreError):  # the circuit breaker logs it
            self._chain.correct(verdict.receipt.renewals(), self._now())

    def _return(self, slot: tuple[Correction, int]) -> None:
        correction, expires_at = slot
        try:
            self._chain.correct([correction], self._now())
        except StoreError:
            if now_us() < expires_at:
                return
        self._returns.release(slot)


def _rates_cost(cost: int) -> Due:
    """The true cost for rates; slots are not a matter of cost."""
    return lambda limit: None if limit.quota.concurrent else cost


class Slot:
    """Holds the slots of a request while the block runs. It may be entered again, also while it is held."""

    def __init__(self, limiter: Limiter, features: Features, cost: int | None) -> None:
        self._limiter = limiter
        self._request = features, cost
        self._held: list[Verdict] = []

    def __enter__(self) -> Verdict:
        return self._enter(self._limiter.hit(*self._request))

    async def __aenter__(self) -> Verdict:
        return self._enter(await self._limiter.ahit(*self._request))

    def _enter(self, verdict: Verdict) -> Verdict:
        verdict.raise_for_limit()
        self._limiter.hold(verdict)
        self._held.append(verdict)
        return verdict

    def __exit__(self, *_: object) -> None:
        self._limiter.conclude(self._held.pop(), None)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._limiter.aconclude(self._held.pop(), None))
