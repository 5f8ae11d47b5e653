"""The part of a verdict that belongs to one rule. A view settles, refunds, counts or resets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ..quota import checked_cost
from ..receipt import cost_due, refund_due

if TYPE_CHECKING:
    from .verdict import Verdict


class NamedRules(Protocol):
    """The rules of a limiter, by their names."""

    @property
    def by_name(self) -> Mapping[str, object]: ...


class Settler(Protocol):
    """Settles a verdict: a limiter does so at once, a middleware at the end of the response."""

    @property
    def rules(self) -> NamedRules: ...

    def settle_stated(self, verdict: Verdict) -> None:
        """Apply the costs that were stated for the rules of a verdict."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        """Set the counts under the key of one rule of a verdict to zero."""


class RuleVerdict:
    """The part of a verdict that belongs to one rule.

    After ``hit``, its methods take effect at once. In a request that a middleware handles, ``settle``, ``refund`` and
    ``count`` take effect at the end of the response. After the response, they take effect at once. On an event loop, a
    task calls the store.
    """

    __slots__ = ("_rule", "_verdicts")

    def __init__(self, verdicts: Sequence[Verdict], rule: str) -> None:
        self._verdicts = [verdict for verdict in verdicts if rule in verdict]
        self._rule = rule

    def settle(self, cost: int) -> None:
        """Replace the cost that the request consumed from this rule by the true cost. Slots are not changed.

        If your view has checked the rule several times, pass the total cost of all checks since the last call.

        Args:
            cost: The true cost in units of the limit, a whole number from 0 to 10**12.

        Raises:
            ConfigError: ``cost`` is not such a number.
        """
        state_cost(self._verdicts, self._rule, cost)
        self._settle()

    def refund(self) -> None:
        """Refund all of the cost that the request consumed from this rule. Return its slots, too."""
        for verdict in self._verdicts:
            verdict.state(self._rule, refund_due)
        self._settle()

    def count(self) -> None:
        """Count this request for every status of its response. You use it with ``count_when = {marked = true}``."""
        for verdict in self._verdicts:
            verdict.receipt.marked.add(self._rule)
        self._settle()

    def reset(self) -> None:
        """Set all counts under the key of this rule to zero, this request included. It takes effect at once."""
        for verdict in self._verdicts:
            if verdict.settler is not None:
                verdict.settler.forget(verdict, self._rule)

    def _settle(self) -> None:
        for verdict in self._verdicts:
            if verdict.settler is not None:
                verdict.settler.settle_stated(verdict)


def state_cost(parts: Sequence[Verdict], rule: str, cost: int) -> None:
    """State the true cost of a rule at the last hit of each key. Earlier hits without a stated cost get the cost 0.

    Raises ``ConfigError`` when ``cost`` is not one.
    """
    due, seen = cost_due(checked_cost(cost)), set[tuple[object, str]]()
    for part in reversed(parts):
        if rule in part:
            limiter = getattr(part.settler, "limiter", part.settler)
            keys = {(limiter, decision.key) for decision in part.decisions if decision.rule == rule}
            if seen.isdisjoint(keys):
                part.state(rule, due)
            elif rule not in part.receipt.stated:
                part.state(rule, _no_cost)
            seen |= keys


_no_cost: Final = cost_due(0)
