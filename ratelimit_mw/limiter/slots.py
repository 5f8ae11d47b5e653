"""``Slots``: the part of a ``Limiter`` that takes slots. It waits for them, and returns those of a cancelled caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from ..decision import Decision, Hit, Verdict, build_verdict, name_slots
from ..keys.features import Features
from ..rules.plan import Plan
from ..rules.rule import Rule
from .history import History
from .slot import Slot

if TYPE_CHECKING:
    from .limiter import Limiter


class Slots(History):
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
        return self._queues.decide(_waiting_rules(plan, hits), partial(self._ask, plan, hits))

    async def _adecide_in_turn(self, plan: Plan, hits: Sequence[Hit]) -> Verdict:
        return await self._queues.adecide(_waiting_rules(plan, hits), partial(self._aask, plan, hits))

    async def _ask(self, plan: Plan, hits: Sequence[Hit], consume: bool) -> Verdict:
        """Block the thread."""
        decisions = self._chain.apply(self._hits_of_call(hits, consume), self._now(), consume)
        return build_verdict(decisions, consume, plan.adds_hits)

    async def _aask(self, plan: Plan, hits: Sequence[Hit], consume: bool) -> Verdict:
        deciding = self._chain.aapply(self._hits_of_call(hits, consume), self._now(), consume)
        return build_verdict(await self._keep_slots(deciding), consume, plan.adds_hits)

    def _hits_of_call(self, hits: Sequence[Hit], consume: bool) -> Sequence[Hit]:
        """Return the hits of one call of the store: with new ids of slots, or without a cost to consume."""
        if not consume:
            return [hit._replace(cost=0) for hit in hits]
        return name_slots(hits) if self.waits else hits

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


def _waiting_rules(plan: Plan, hits: Sequence[Hit]) -> dict[str, Rule]:
    """Return the rules with ``wait``, each by the key of its slots."""
    rules = {rule.name: rule.source for rule in plan.rules if rule.source.wait_us}
    names = {hit.key: hit.limit.rule for hit in hits if hit.limit.quota.concurrent}
    return {key: rules[name] for key, name in names.items() if name in rules}
