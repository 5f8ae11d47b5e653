"""``Slots``: the part of a ``Limiter`` that takes slots. It waits for them, and returns those of a cancelled caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from ...decision import Decision, Hit, Verdict, build_verdict, name_slots
from ...keys.features import Features
from ...rules.plan import Plan
from ...rules.rule import Rule
from ..settlement import Settlement
from .slot import Slot

if TYPE_CHECKING:
    from ..limiter import Limiter


class Slots(Settlement):
    """Takes the slots of concurrency limits. ``Limiter`` inherits it."""

    def slot(self, features: Features, cost: int | None = None) -> Slot:
        """Hold a slot of each matching concurrency rule while a block runs. Other matching rules count the request.

        Args:
            features: The features of the request, as for ``hit``.
            cost: How many slots to hold, by default each rule's own cost.

        Returns:
            A context manager for ``with`` and ``async with``. It enters as the verdict.

        Raises:
            RateLimitExceeded: A rule rejects. Raised when the block is entered.

        Example:
            >>> from ratelimit_mw import Limiter, Rule
            >>> limiter = Limiter([Rule(name="reports", limits="2 concurrent")])
            >>> with limiter.slot({"ip": "192.0.2.7"}) as verdict:
            ...     verdict.decisions[0].remaining
            1
        """
        return Slot(cast("Limiter", self), features, cost)

    def _decide_in_turn(self, plan: Plan, hits: Sequence[Hit]) -> Verdict:
        """Decide hits, and wait for their slots as long as their rules allow."""
        request = WaitingRequest(plan, hits, self.waits)
        return self._queues.decide(_waiting_rules(plan, hits), partial(self._ask, request))

    async def _adecide_in_turn(self, plan: Plan, hits: Sequence[Hit]) -> Verdict:
        request = WaitingRequest(plan, hits, self.waits)
        return await self._queues.adecide(_waiting_rules(plan, hits), partial(self._aask, request))

    async def _ask(self, request: WaitingRequest, consume: bool) -> Verdict:
        """Block the thread."""
        return request.verdict(self._counts.apply(request.hits_of_call(consume), self._now(), consume), consume)

    async def _aask(self, request: WaitingRequest, consume: bool) -> Verdict:
        deciding = self._counts.aapply(request.hits_of_call(consume), self._now(), consume)
        return request.verdict(await self._keep_slots(deciding), consume)

    async def _keep_slots(self, decisions: Awaitable[list[Decision]]) -> list[Decision]:
        """Return the decisions. If the caller is cancelled meanwhile, return the slots once the store has decided."""
        deciding = asyncio.ensure_future(decisions)
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            self._start(self._abandon(deciding))
            raise

    async def _abandon(self, deciding: Awaitable[list[Decision]]) -> None:
        await self.aconclude(build_verdict(await deciding, has_added=True), None)


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
    bans = {decision.rule: decision for decision in decisions if decision.source.is_ban}
    rejections = [decision for decision in decisions if not decision.allowed and decision.source.shadow]
    counted = [each for each in rejections if each.rule not in bans or bans[each.rule].allowed]
    return [*{each.rule: bans[each.rule] for each in counted if each.rule in bans}.values(), *counted]


def _waiting_rules(plan: Plan, hits: Sequence[Hit]) -> dict[str, Rule]:
    """Return the rules with ``wait``, each by the key of its slots."""
    rules = {rule.name: rule.source for rule in plan.rules if rule.source.wait_us}
    names = {hit.key: hit.limit.rule for hit in hits if hit.limit.quota.concurrent}
    return {key: rules[name] for key, name in names.items() if name in rules}
