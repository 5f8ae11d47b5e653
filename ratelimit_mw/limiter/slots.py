"""``Slots``: takes the slots of concurrency limits, waits for them, renews them, and returns them.

Corrections go to the store through it, because each one may free a slot, or leave one that has to be returned later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from ..algorithms.concurrency import SLOT_LIFE
from ..clock import SECOND, now_us
from ..decision import (
    Correction,
    Decision,
    Hit,
    PendingCorrection,
    Receipt,
    SlotCost,
    Verdict,
    bans_of,
    build_verdict,
    name_slots,
)
from ..errors import StoreError
from ..heartbeat import Heartbeat
from ..rules.plan import Plan
from ..rules.rule import Rule
from ..rules.ruleset import RuleSet
from ..stores import MemoryStore
from ..stores.blocking import Call, async_call, blocking_call, run_blocking
from .clocks import Clocks
from .remote.breaker import NotAskedError
from .remote.store import RemoteStore
from .slot_queues import SlotQueues
from .tasks import Tasks

_RETRY_EVERY: Final = 0.5  # seconds between two tries to return a slot
_CHECK_EVERY: Final = 1.0  # seconds between two checks for slots that were held too long
_MAX_UNRETURNED: Final = 10_000

Counts = MemoryStore | RemoteStore
"""The store that requests ask."""


class Slots:
    """The slots of the requests that run in this process.

    Args:
        counts: The store.
        clocks: The times of the limiter.
        tasks: The tasks of the limiter.
    """

    def __init__(self, counts: Counts, clocks: Clocks, tasks: Tasks) -> None:
        self._counts, self._clocks, self._tasks = counts, clocks, tasks
        self.queues = SlotQueues(clocks.now)
        self.renewed = Heartbeat(self._renew, SLOT_LIFE / SECOND / 3)
        self.unreturned = Heartbeat(self._return, _RETRY_EVERY)  # slots to return, each with the time when it expires
        texts = "return slots after hold_at_most", "they stay taken until their requests end"
        self.bounded = Heartbeat(self._end_hold, _CHECK_EVERY, *texts)  # slots by rule, each with the end of its hold

    async def send(self, call: Call, corrections: Sequence[Correction]) -> list[int]:
        """Send corrections, and wake a request that waits for a slot of theirs. Return the time of each."""
        times: list[int] = await call(self._counts, "correct", corrections, self._clocks.now())
        self.queues.free(corrections)
        return times

    async def settle(self, call: Call, receipt: Receipt, pending: Sequence[PendingCorrection]) -> None:
        """Send and confirm the corrections of a receipt.

        When the store fails, keep what may be sent later: corrections that were not sent, and slots by their id.
        """
        corrections = [each.correction for each in pending]
        try:
            receipt.confirm(pending, await self.send(call, corrections))
        except StoreError as error:
            if isinstance(error, NotAskedError):
                receipt.cancel(pending)
            for correction in corrections:
                if correction.limit.quota.concurrent:
                    self._return_later(correction, is_late=False)

    def hold(self, verdict: Verdict, rules: RuleSet) -> None:
        """Renew the slots of a verdict until ``release``, each for at most the ``hold_at_most`` of its rule."""
        names = {decision.rule for decision in verdict.decisions if decision.source.holds_slots}
        if names:
            self.renewed.hold(verdict)
        for name in names & rules.by_name.keys():
            self.bounded.hold((verdict, name, now_us() + rules.by_name[name].source.hold_us))

    def release(self, verdict: Verdict) -> None:
        """Stop renewing the slots of a verdict. The caller returns them."""
        self.renewed.release(verdict)

    def lose(self, hits: Iterable[Hit]) -> None:
        """Return the slots of hits that the store may have counted, or may still count, without a reply."""
        for limit, key, cost in hits:
            if isinstance(cost, SlotCost):
                self._return_later(Correction.return_slots(limit, key, cost), is_late=True)

    def close(self) -> None:
        """Stop all threads."""
        for heartbeat in (self.renewed, self.unreturned, self.bounded):
            heartbeat.close()

    async def decide_in_turn(self, call: Call, plan: Plan, hits: Sequence[Hit]) -> Verdict:
        """Decide hits, and wait for their slots as long as their rules allow."""
        request = WaitingRequest(plan, hits, self._tasks.waits)

        async def ask(consume: bool) -> Verdict:
            asked = request.hits_of_call(consume), self._clocks.now(), consume
            if call is blocking_call:
                return request.verdict(self._counts.apply(*asked), consume)
            return request.verdict(await self.keep(self._counts.aapply(*asked)), consume)

        return await self.queues.decide(call, _waiting_rules(plan, hits), ask)

    async def keep(self, decisions: Awaitable[list[Decision]]) -> list[Decision]:
        """Return the decisions. If the caller is cancelled meanwhile, return the slots once the store has decided."""
        deciding = asyncio.ensure_future(decisions)
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            self._tasks.start(self._abandon(deciding))
            raise

    async def _abandon(self, deciding: Awaitable[list[Decision]]) -> None:
        receipt = build_verdict(await deciding, has_added=True).receipt
        receipt.has_ended = True
        if pending := receipt.corrections(receipt.due):
            await self.settle(async_call, receipt, pending)

    def _return_later(self, correction: Correction, is_late: bool) -> None:
        if len(self.unreturned) < _MAX_UNRETURNED:
            self.unreturned.hold((correction, now_us() + SLOT_LIFE, is_late))

    def _renew(self, verdict: Verdict) -> None:
        if renewals := verdict.receipt.renewals():
            with suppress(StoreError):  # the circuit breaker logs it
                run_blocking(self.send(blocking_call, renewals))

    def _end_hold(self, slot: tuple[Verdict, str, int]) -> None:
        """Return the slots of a rule that a request has held for ``hold_at_most``."""
        verdict, rule, ends_at = slot
        receipt = verdict.receipt
        if not receipt.has_ended:
            if now_us() < ends_at:
                return
            pending = receipt.corrections(lambda d: 0 if d.quota.concurrent and d.rule == rule else None)
            run_blocking(self.settle(blocking_call, receipt, pending))
        self.bounded.release(slot)

    def _return(self, slot: tuple[Correction, int, bool]) -> None:
        correction, expires_at, is_late = slot
        try:
            run_blocking(self.send(blocking_call, [correction]))
        except StoreError:
            if now_us() < expires_at:
                return
        else:
            if is_late:  # the store may count the hit after this correction, which has overtaken it
                self.unreturned.hold((correction, expires_at, False))
        self.unreturned.release(slot)


class WaitingRequest:
    """The hits of a request that may ask the store several times, because it waits for a slot.

    A limit in shadow mode that has rejected the request is not decided again: its rejection counts once for a ban.
    """

    def __init__(self, plan: Plan, hits: Sequence[Hit], names: bool) -> None:
        """``names``: whether slots need an id, because the store is not in this process."""
        self._names = names
        self._adds_hits = plan.adds_hits
        self._hits = hits
        self._decided: list[Decision] = []

    def hits_of_call(self, consume: bool) -> list[Hit]:
        """Return the hits of the next call of the store: with new ids of slots, or without a cost to consume."""
        decided = {decision.hit[1] for decision in self._decided}
        hits = [hit for hit in self._hits if hit.key not in decided]
        if not consume:
            return [hit._replace(cost=0) for hit in hits]
        return name_slots(hits) if self._names else hits

    def verdict(self, decisions: Sequence[Decision], consume: bool) -> Verdict:
        """Return the verdict after a call of the store."""
        every = [*self._decided, *decisions]
        if consume:
            self._decided = _shadow_rejections(every)
        return build_verdict(every, consume, self._adds_hits)


def _shadow_rejections(decisions: Iterable[Decision]) -> list[Decision]:
    """Return the rejections by limits in shadow mode, with the decisions of the bans that counted them.

    A rejection by a ban is left out: it is not counted, and the next call must include it, so that the rule consumes
    nothing.
    """
    bans = bans_of(decisions)
    rejections = [decision for decision in decisions if not decision.allowed and decision.source.shadow]
    counted = [each for each in rejections if each.rule not in bans or bans[each.rule].allowed]
    return [*{each.rule: bans[each.rule] for each in counted if each.rule in bans}.values(), *counted]


def _waiting_rules(plan: Plan, hits: Sequence[Hit]) -> dict[str, Rule]:
    """Return the rules with ``wait``, each by the key of its slots."""
    rules = {rule.name: rule.source for rule in plan.rules if rule.source.wait_us}
    names = {hit.key: hit.limit.rule for hit in hits if hit.limit.quota.concurrent}
    return {key: rules[name] for key, name in names.items() if name in rules}
