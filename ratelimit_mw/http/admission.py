"""One decided request, until it is over: what to add to its response, and what to settle after it."""

from __future__ import annotations

from functools import lru_cache

from ..decision import Verdict
from ..limiter.limiter import Limiter
from ..rules.plan import Plan
from .headers import HeaderWriter, TextHeader, as_text

__all__ = ["Pending", "left_of", "part_of"]


class Pending:
    """Built when the verdict is there. ``over`` or ``aover`` is called when the request is over, or more often."""

    __slots__ = ("_limiter", "_settled_at", "headers", "plan", "verdict")

    def __init__(self, limiter: Limiter, plan: Plan, verdict: Verdict, writer: HeaderWriter) -> None:
        self.plan = plan
        self.verdict = verdict
        self.headers = writer.headers(verdict)  # once, as a rejection's Retry-After may have a random part
        self._limiter = limiter
        self._settled_at: object = self  # no cost, not even None

    @property
    def fields(self) -> list[TextHeader]:
        """The headers as text."""
        return as_text(self.headers)

    @property
    def waits(self) -> bool:
        """Whether ``aover`` may have to wait for the store."""
        return self._limiter.waits and self._settles()

    def over(self, status: int | None) -> None:
        """Settle what the outcome decides: once, and again for a cost that was stated since.

        ``status`` None: nobody knows how the request ended.
        """
        if self._is_due():
            self._limiter.conclude(self.verdict, status)

    async def aover(self, status: int | None) -> None:
        if self._is_due():
            await self._limiter.aconclude(self.verdict, status)

    def _is_due(self) -> bool:
        cost = self.verdict.true_cost
        if self._settled_at == cost or not self.verdict.allowed:
            return False
        self._settled_at = cost
        return self._settles()

    def _settles(self) -> bool:
        return self.plan.needs_settlement or self.verdict.true_cost is not None


@lru_cache(1024)
def left_of(plan: Plan, decided: tuple[str, ...]) -> Plan:
    """What is left to decide where another middleware has decided the rules of these names for the same request."""
    return Plan([rule for rule in plan.rules if rule.name not in decided], plan.lists)


@lru_cache(1024)
def part_of(plan: Plan, names: frozenset[str]) -> Plan:
    """The rules of these names alone, and the lists: more may be known of the client by now."""
    return Plan([rule for rule in plan.rules if rule.name in names], plan.lists)
