"""``Settlement``: the half of a ``Limiter`` that changes verdicts after their decision.

It works out how much each hit must have consumed. The store that counted the hit makes the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..clock import Clock
from ..decision import Verdict, state_cost
from ..errors import ConfigError, StoreError, suggestion
from ..quota import checked_cost
from ..receipt import Correction, PendingCorrection, Receipt, refund_due
from ..stores import MemoryStore, Store
from ..stores.blocking import Call, blocking_call, run_blocking, twins
from .remote.breaker import NotAskedError
from .remote.store import RemoteStore
from .slots.held import HeldSlots
from .slots.queues import SlotQueues, is_on_event_loop

if TYPE_CHECKING:
    from ..rules.ruleset import RuleSet

_log = logging.getLogger("ratelimit_mw")
_Corrections = list[tuple[Receipt, list[PendingCorrection]]]


class Settlement:
    """Refunds and settles verdicts, renews their slots and concludes their requests. ``Limiter`` inherits it."""

    rules: RuleSet
    waits: bool
    store: Store
    _remote: RemoteStore | None = None
    """The store, and the parts of this process in front of it; None for the memory store."""
    _counts: MemoryStore | RemoteStore
    """The store that requests ask."""
    _clock: Clock | None
    _time: Clock
    _now: Callable[[], int | None]  # the time to give to the store, None for the store's own time

    def __init__(self) -> None:
        self._slots = HeldSlots(self._send_now, self._settle_now)
        self._queues = SlotQueues(self._now)
        self._tasks: set[asyncio.Future[None]] = set()

    async def _refund(self, call: Call, verdict: Verdict) -> None:
        """Refund all of the cost that a verdict consumed. A second call changes nothing.

        Args:
            verdict: A verdict of ``hit``.
        """
        self._release(verdict)
        await self._correct(call, verdict)

    refund, arefund = twins(_refund)

    async def _settle(self, call: Call, verdict: Verdict, cost: int, rule: str | None = None) -> None:
        """Replace the cost that a verdict consumed with the true cost.

        A lower cost refunds the difference. A higher cost consumes the difference, even beyond the limit. Slots of
        concurrency rules are not changed.

        Args:
            verdict: A verdict of ``hit``.
            cost: The true cost in units of the limits, a whole number from 0 to 10**12.
            rule: The name of the rule to settle. You may leave it out when only one rule applied. A rule that did not
                apply to the request is not changed.

        Raises:
            ConfigError: ``cost`` is out of range, there is no such rule, or several rules applied.
        """
        self._state_cost(verdict, cost, rule)
        await self._correct(call, verdict)

    settle, asettle = twins(_settle)

    def settle_stated(self, verdict: Verdict) -> None:
        """Apply the costs that ``verdict[rule].settle`` stated. On an event loop, a task applies them.

        Args:
            verdict: A verdict of this limiter.
        """
        if self._must_not_wait():
            self._start(self._asend(self._record(verdict)))
        else:
            run_blocking(self._correct(blocking_call, verdict))

    def hold(self, verdict: Verdict, rules: RuleSet | None = None) -> None:
        """Renew the slots of a verdict until ``conclude``; adapters use it.

        Args:
            verdict: The verdict of an allowed request.
            rules: The rules of the request. Default: the current rules.
        """
        self._slots.hold(verdict, rules or self.rules)

    async def _conclude(self, call: Call, verdict: Verdict, status: int | None) -> None:
        """Return slots, apply the stated cost and undo costs that do not count; adapters call it after the response.

        Args:
            verdict: The verdict of the request.
            status: The HTTP status of the response. None means that the outcome is unknown: the cost stays consumed.
        """
        for part in verdict.parts:
            self._slots.release(part)
            part.receipt.has_ended, part.receipt.status = True, status
        await self._correct(call, verdict)

    conclude, aconclude = twins(_conclude)

    def start(self) -> None:
        """Connect to the store now, and not at the first decision. An unreachable store raises no error.

        The ASGI middleware calls it when the application starts. It takes one second at most, and the time budget does
        not apply.
        """
        if self._remote is not None and self.rules.enabled:
            self._remote.start()

    async def astart(self) -> None:
        """Async form of ``start``."""
        if self._remote is not None and self.rules.enabled:
            await self._remote.astart()

    @property
    def is_starting(self) -> bool:
        """Whether the store is to be opened by ``start``, or by the next request of this process."""
        return self._remote is not None and not self._remote.is_open

    def _state_cost(self, verdict: Verdict, cost: int, rule: str | None) -> None:
        checked_cost(cost)
        if rule is None:
            rule = verdict.rule_to_settle('settle(verdict, cost, rule="{}")')
        elif rule not in self.rules.by_name and rule not in verdict:
            raise ConfigError(f"unknown rule {rule!r}{suggestion(rule, self.rules.by_name)}")
        if rule is not None:
            state_cost(verdict.parts, rule, cost)

    def _release(self, verdict: Verdict) -> None:
        for part in verdict.parts:
            self._slots.release(part)
            for rule in part.rules:
                part.state(rule, refund_due)

    def _record(self, verdict: Verdict) -> _Corrections:
        """Record the corrections of a verdict, for each part that has any. Other limiters settle their parts."""
        recorded: _Corrections = []
        for part in verdict.parts:
            settler, receipt = part.settler, part.receipt
            if part is not verdict and settler is not None and getattr(settler, "limiter", settler) is not self:
                settler.settle_stated(part)
            elif pending := receipt.corrections(receipt.due):
                recorded.append((receipt, pending))
        return recorded

    def _must_not_wait(self) -> bool:
        """Return whether this thread runs an event loop that a call to the store would block."""
        return self.waits and is_on_event_loop()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Start a task. It completes when the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _correct(self, call: Call, verdict: Verdict) -> None:
        """Send the corrections of a verdict. On an event loop, they are sent even when the caller is cancelled."""
        corrections = self._record(verdict)
        if call is blocking_call or not self.waits:
            for receipt, pending in corrections:
                self._settle_now(receipt, pending)
        elif corrections:
            await asyncio.shield(self._start(self._asend(corrections)))

    def _settle_now(self, receipt: Receipt, pending: Sequence[PendingCorrection]) -> None:
        with self._keeping_pending(receipt, pending):
            receipt.confirm(pending, self._send_now([each.correction for each in pending]))

    def _send_now(self, corrections: Sequence[Correction]) -> list[int]:
        times = self._counts.correct(corrections, self._now())
        self._queues.free(corrections)
        return times

    async def _asend(self, corrections: _Corrections) -> None:
        for receipt, pending in corrections:
            with self._keeping_pending(receipt, pending):
                corrected = [each.correction for each in pending]
                times = await self._counts.acorrect(corrected, self._now())
                self._queues.free(corrected)
                receipt.confirm(pending, times)

    @contextmanager
    def _keeping_pending(self, receipt: Receipt, pending: Sequence[PendingCorrection]) -> Iterator[None]:
        """Keep what may be sent later when the store fails: corrections that were not sent, and slots by their id."""
        try:
            yield
        except StoreError as error:
            if isinstance(error, NotAskedError):
                receipt.cancel(pending)
            self._slots.keep(each.correction for each in pending)
