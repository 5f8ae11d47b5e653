"""The result of one limit (``Decision``) and of one request (``Verdict``). Pure data, no I/O.

Inside the package, times are whole microseconds (``*_us``). Users read seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import randbits
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from .clock import SECOND
from .errors import ConfigError, RateLimitExceeded, suggestion
from .quota import checked_cost
from .receipt import Due, Receipt, cost_due, receipt_of, refund_due

if TYPE_CHECKING:
    from .algorithms.limit import Limit
    from .quota import Quota
    from .rules.ruleset import RuleSet

_SLOT_BITS: Final = 50
"""Ids of slots are exact numbers in Lua, and smaller than the times that stores name slots by."""


@dataclass(slots=True, eq=False, repr=False)
class Decision:
    """The result of one limit for one request.

    After the third hit on "5/minute" under a fixed window, 20 s into the window: ``allowed`` is True, ``limit`` 5,
    ``remaining`` 2, ``reset_after`` 40.0 and ``retry_after`` 0.0.

    Args:
        allowed: Whether this limit allows the request.
        remaining: How much more cost this limit would allow now.
        retry_us: Microseconds until the same cost is allowed: 0 when allowed, None when the cost can never fit.
        reset_us: Microseconds until the limit is fully reset.
        at_us: The time of the hit by the store's clock, in microseconds since 1970.
        delay_us: Microseconds to wait before going on (leaky-bucket queue).
    """

    allowed: bool
    remaining: int
    retry_us: int | None
    reset_us: int
    at_us: int
    delay_us: int = 0
    hit: tuple[Limit, str, int] = field(init=False)
    """The limit, key and cost that were decided. The store sets it."""

    unavailable: ClassVar[bool] = False
    """True when the limit rejected because the store could not be reached (``on_store_error = "deny"``)."""

    @property
    def source(self) -> Limit:
        """The limit that decided. Internal; use ``rule``, ``quota`` and ``limit``."""
        return self.hit[0]

    @property
    def rule(self) -> str:
        """The name of the rule."""
        return self.hit[0].rule

    @property
    def quota(self) -> Quota:
        """The quota of the limit, for example ``Quota("5/minute")``."""
        return self.hit[0].quota

    @property
    def limit(self) -> int:
        """The largest cost that can pass at once: the amount of the quota, or the capacity of a bucket."""
        return self.hit[0].limit

    @property
    def shadow(self) -> bool:
        """True for a rule with ``mode = "shadow"``, which never rejects a request."""
        return self.hit[0].shadow

    @property
    def local(self) -> bool:
        """True when this process decided alone because the store could not be reached."""
        return self.hit[0].local or self.unavailable

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same cost is allowed: 0.0 when allowed, None when the cost is larger than the limit."""
        return None if self.retry_us is None else self.retry_us / SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the limit is fully reset."""
        return self.reset_us / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait before going on (leaky-bucket queue), else 0.0."""
        return self.delay_us / SECOND

    @property
    def at(self) -> float:
        """The time of the hit by the store's clock, in seconds since 1970."""
        return self.at_us / SECOND

    def __repr__(self) -> str:
        return (
            f"Decision(rule={self.rule!r}, quota='{self.quota}', allowed={self.allowed}, limit={self.limit},"
            f" remaining={self.remaining}, reset_after={self.reset_after}, retry_after={self.retry_after})"
        )


class Hit(NamedTuple):
    """A request under one limit: its key, and the cost to consume."""

    limit: Limit
    key: str
    cost: int


make_hit: Callable[[tuple[Limit, str, int]], Hit] = partial(tuple.__new__, Hit)
"""Build a ``Hit`` from its three fields. This is faster than calling the class."""


class SlotCost(int):
    """The cost of a hit on slots. ``slot`` is their id: a client that got no reply can return slots by it."""

    slot: int


def name_slots(hits: Iterable[Hit]) -> list[Hit]:
    """Give the slots that these hits take an id, which no other hit has."""
    return [hit._replace(cost=_slot_cost(hit.cost)) if hit.limit.quota.concurrent else hit for hit in hits]


def _slot_cost(cost: int) -> SlotCost:
    named = SlotCost(cost)
    named.slot = 1 + randbits(_SLOT_BITS)
    return named


class Settler(Protocol):
    """Settles a verdict: a limiter does so at once, a middleware at the end of the response."""

    rules: RuleSet

    def settle_stated(self, verdict: Verdict) -> None:
        """Apply the costs that were stated for the rules of a verdict."""

    def forget(self, verdict: Verdict, rule: str) -> None:
        """Forget all that is counted under the key of one rule of a verdict."""


class Verdict:
    """The result of one request. It is true when the request is allowed. ``verdict["login"]`` is the part of one rule.

    Args:
        decisions: One ``Decision`` for each limit that applied.
        allowed: Whether the request may go on; ``bool(verdict)`` is the same.

    Example:
        >>> verdict = Verdict()
        >>> bool(verdict), verdict.retry_after, verdict.rules
        (True, 0.0, ())
    """

    __slots__ = ("allowed", "decisions", "open_receipt", "settler")
    __iter__: ClassVar[None] = None

    def __init__(self, decisions: Sequence[Decision] = (), allowed: bool = True) -> None:
        self.decisions = decisions
        self.allowed = allowed
        self.open_receipt: Receipt | None = None
        self.settler: Settler | None = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def rejected_by(self) -> list[Decision]:
        """The decisions that rejected the request. Shadow rules are never among them."""
        return [] if self.allowed else [d for d in self.decisions if not d.allowed and not d.shadow]

    @property
    def retry_after(self) -> float | None:
        """Seconds until all limits allow the request: 0.0 when allowed, None when waiting does not help."""
        waits = [d.retry_after for d in self.rejected_by]
        return None if None in waits or self.denied else max(waits, default=0.0)  # type: ignore[type-var]

    @property
    def delay(self) -> float:
        """Seconds to wait before going on: the longest delay of the decisions, 0.0 when rejected."""
        return max((d.delay for d in self.decisions if self.allowed and not d.shadow), default=0.0)

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that applied, in order."""
        return tuple(dict.fromkeys(d.rule for d in self.decisions))

    def __contains__(self, rule: str) -> bool:
        return rule in self.rules

    def __getitem__(self, rule: str) -> RuleVerdict:
        """Return the part of one rule. For a rule that did not apply to this request it changes nothing.

        Raises:
            ConfigError: The limiter has no rule of this name.
        """
        known = {name for part in self.parts if part.settler is not None for name in part.settler.rules.by_name}
        if known and rule not in known and rule not in self:
            raise ConfigError(f"unknown rule {rule!r}{suggestion(rule, known)}")
        return RuleVerdict(self.parts, rule)

    @property
    def parts(self) -> Sequence[Verdict]:
        """The verdicts that this one is made of. Internal."""
        return (self,)

    def state(self, rule: str, due: Due) -> None:
        """State the cost of one rule. Internal; a limiter applies it."""
        for part in self.parts:
            if rule in part:
                part.receipt.stated[rule] = due

    def settle(self, cost: int) -> None:
        """Settle the true cost of the request, where one rule applies: ``verdict[rule].settle(cost)``.

        Args:
            cost: The true cost in units of the limit, a whole number from 0 to 10**12.

        Raises:
            ConfigError: ``cost`` is not such a number, or several rules apply.
        """
        checked_cost(cost)
        if rule := self.rule_to_settle('verdict["{}"].settle(cost)'):
            self[rule].settle(cost)

    def rule_to_settle(self, form: str) -> str | None:
        """Return the one rule that has a cost, None without any. Internal; ``form`` shows how to name a rule."""
        rules = list(dict.fromkeys(d.rule for d in self.decisions if not d.quota.concurrent))
        if len(rules) > 1:
            message = f"{len(rules)} rules apply: {', '.join(map(repr, rules))}. Name one: {form.format(rules[-1])}"
            raise ConfigError(message)
        return rules[0] if rules else None

    def raise_for_limit(self) -> None:
        """Raise ``RateLimitExceeded`` when the request is rejected, else do nothing.

        Raises:
            RateLimitExceeded: The request is rejected. Its ``verdict`` is this one.
        """
        if not self.allowed:
            raise RateLimitExceeded(self)

    @property
    def unavailable(self) -> bool:
        """True when the request is rejected because the store could not be reached (``on_store_error = "deny"``)."""
        for decision in self.decisions:  # noqa: SIM110 - faster than any(), and every rejection asks
            if decision.unavailable:
                return True
        return False

    @property
    def denied(self) -> bool:
        """True when a deny list rejected the request: no limit was asked, and waiting does not help."""
        return not self.allowed and not self.decisions

    @property
    def status(self) -> int:
        """The HTTP status of a rejection; 200 when allowed.

        429 for a limit, 403 for a deny list (``denied``), 503 for a store that could not be reached (``unavailable``).
        """
        return 200 if self.allowed else 403 if self.denied else 503 if self.unavailable else 429

    @property
    def receipt(self) -> Receipt:
        """The record of the consumed cost. Internal; created on first use."""
        return self.open_receipt or receipt_of(self)

    def __repr__(self) -> str:
        return f"Verdict(allowed={self.allowed}, retry_after={self.retry_after}, decisions={list(self.decisions)})"


class CombinedVerdict(Verdict):
    """Several verdicts on one request, as one."""

    __slots__ = ("_parts",)

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self._parts = tuple(part for verdict in verdicts for part in verdict.parts)
        super().__init__([decision for part in self._parts for decision in part.decisions], all(self._parts))

    @property
    def parts(self) -> Sequence[Verdict]:
        return self._parts


class RuleVerdict:
    """The part of a verdict that belongs to one rule.

    After ``hit`` its methods take effect at once. In a request that a middleware handles, ``settle`` and ``refund``
    take effect at the end of the response, and at once after it. Under an event loop the store is called in a task.
    """

    __slots__ = ("_rule", "_verdicts")

    def __init__(self, verdicts: Sequence[Verdict], rule: str) -> None:
        self._verdicts = [verdict for verdict in verdicts if rule in verdict]
        self._rule = rule

    def settle(self, cost: int) -> None:
        """Replace the cost that the request consumed from this rule by the true cost. Slots are not changed.

        Args:
            cost: The true cost in units of the limit, a whole number from 0 to 10**12.

        Raises:
            ConfigError: ``cost`` is not such a number.
        """
        self._state(cost_due(checked_cost(cost)))

    def refund(self) -> None:
        """Return all of the cost that the request consumed from this rule, its slots too."""
        self._state(refund_due)

    def reset(self) -> None:
        """Forget all that is counted under the key of this rule, this request too. It takes effect at once."""
        for verdict in self._verdicts:
            if verdict.settler is not None:
                verdict.settler.forget(verdict, self._rule)

    def _state(self, due: Due) -> None:
        for verdict in self._verdicts:
            verdict.state(self._rule, due)
            if verdict.settler is not None:
                verdict.settler.settle_stated(verdict)


def build_verdict(decisions: Sequence[Decision], consumed: bool = True) -> Verdict:
    """Build the verdict of these decisions. A peek (``consumed`` False) has nothing to refund."""
    allowed = True
    for decision in decisions:
        if not decision.allowed and not decision.hit[0].shadow:
            allowed = False
    verdict = Verdict(decisions, allowed)
    if not consumed:
        verdict.open_receipt = Receipt(verdict, consumed=False)
    return verdict


class EarlyVerdict(Exception):  # noqa: N818 - it is a result, not an error
    """A list or a missing key has decided the request, so no store is asked. Never leaves the package."""

    def __init__(self, allowed: bool, limits: Sequence[Limit] = ()) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.limits = limits

    def verdict(self, now: int) -> Verdict:
        """Return the verdict at ``now``. It has no ``retry_after``, because a wait does not help."""
        decisions = [Decision(False, 0, None, 0, now) for _ in self.limits]
        for decision, limit in zip(decisions, self.limits, strict=True):
            decision.hit = (limit, "", 0)
        return Verdict(decisions, self.allowed)


def decide_all(hits: Sequence[Hit], states: Sequence[Any], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
    """Decide all hits of a request at one instant. Pure. A store calls it within one atomic step.

    When a limit rejects the request, the other limits report their state for a cost of 0, and only rejections that a
    log counts are written. A shadow limit never rejects the request.

    Args:
        hits: The hits of the request.
        states: The state of each hit, None for a key without one.
        now: The time in whole microseconds.

    Returns:
        The decisions, one for each hit, and the pairs of hit and new state to write when the request consumes.
    """
    allowed = True
    decisions: list[Decision] = []
    writes: list[tuple[Hit, Any]] = []
    for hit, state in zip(hits, states, strict=True):
        kept, decision = hit[0].decide(state, now, hit[2])
        decision.hit = hit
        decisions.append(decision)
        if kept is not state:
            writes.append((hit, kept))
        if not decision.allowed and not hit[0].shadow:
            allowed = False
    if allowed:
        return decisions, writes
    rejecting = {id(decision.hit) for decision in decisions if not decision.allowed}
    for i, (hit, state) in enumerate(zip(hits, states, strict=True)):
        if id(hit) not in rejecting:
            decisions[i] = hit.limit.decide(state, now, 0)[1]
            decisions[i].hit = hit
    return decisions, [(hit, kept) for hit, kept in writes if id(hit) in rejecting]
