"""The result of one request: ``Verdict`` has the decisions of its limits. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..errors import ConfigError, RateLimitError, suggestion
from ..quota import checked_cost
from .limit import SHED, UNAVAILABLE, Decision
from .receipt import REFUND, Receipt, lock


class Verdict(msgspec.Struct, eq=False):
    """The result of one request. It is true when the request is allowed. ``verdict["login"]`` is the part of one rule.

    Args:
        decisions: One ``Decision`` for each limit that applied.
        allowed: Whether the request may continue; ``bool(verdict)`` is the same.
        open_receipt: The record of the consumed cost, once it is needed. Internal; see ``receipt``.
        settlement: Settles the verdict, None for a peek. Internal; the limiter or the middleware sets it.
        running: The running request at its adaptive limits. Internal.
        settles_at_end: Whether stated costs wait for the end of the response. Internal.

    Example:
        >>> verdict = Verdict()
        >>> bool(verdict), verdict.retry_after, verdict.rules
        (True, 0.0, ())
    """

    decisions: Sequence[Decision] = ()
    allowed: bool = True
    open_receipt: Receipt | None = None
    settlement: Any = None
    running: Any = None
    settles_at_end: bool = False

    __iter__: ClassVar[None] = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def rejected_by(self) -> list[Decision]:
        """The decisions that rejected the request. Shadow rules are never among them."""
        return [] if self.allowed else [d for d in self.decisions if not d.allowed and not d.hit[0].shadow]

    @property
    def retry_after(self) -> float | None:
        """Seconds until all limits allow the request: 0.0 when allowed, None when waiting does not help."""
        waits = [d.retry_after for d in self.rejected_by]
        return None if None in waits or self.denied else max(waits, default=0.0)  # type: ignore[type-var]

    @property
    def delay(self) -> float:
        """Seconds to wait before you continue: the longest delay of the decisions, 0.0 when rejected."""
        return max((d.delay for d in self.decisions if self.allowed and not d.shadow), default=0.0)

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that applied, in order."""
        return tuple(dict.fromkeys(d.rule for d in self.decisions))

    def __contains__(self, rule: str) -> bool:
        return rule in self.rules

    def __getitem__(self, rule: str) -> RuleVerdict:
        """Return the part of one rule. The part of a rule that did not apply to this request changes nothing.

        Raises:
            ConfigError: The limiter has no rule of this name.
        """
        if rule not in self:
            names = (name for part in self.parts if part.settlement for name in part.settlement.rules.by_name)
            known = dict.fromkeys(names)  # in their order
            if known and rule not in known:
                raise ConfigError(f"unknown rule {rule!r}{suggestion(rule, known)}")
        return RuleVerdict(self.parts, rule)

    @property
    def parts(self) -> Sequence[Verdict]:
        """The verdicts that this verdict combines. Internal."""
        return (self,)

    def note_response(self, status: int | None) -> None:
        """Note the status of the response, for adaptive limits. Internal.

        Args:
            status: The HTTP status of the response. None is a request that was cancelled.
        """
        for part in self.parts:
            if part.running is not None:
                part.running.note_response(status)

    def after(self, status: int) -> Verdict:
        """Return this verdict as it is after the outcome; a rejection as it is. Internal; headers show it.

        Args:
            status: The HTTP status of the response.
        """
        if not self.allowed:
            return self
        receipts = [(part, part.open_receipt) for part in self.parts]
        return Verdict(
            [d for part, r in receipts for d in (r.decisions(status) if r else part.decisions)], self.allowed
        )

    def raise_for_limit(self) -> None:
        """Raise ``RateLimitExceeded`` when the request is rejected, else do nothing.

        Raises:
            RateLimitExceeded: The request is rejected. Its ``verdict`` is this one.
        """
        if not self.allowed:
            raise RateLimitExceeded(self)

    @property
    def unavailable(self) -> bool:
        """True when the request is rejected because the store was unreachable (``on_store_error = "deny"``)."""
        for decision in self.decisions:  # noqa: SIM110 - faster than any(), and every rejection asks
            if decision.why == UNAVAILABLE:
                return True
        return False

    @property
    def shed(self) -> bool:
        """True when the request is rejected by an adaptive limit, because the service cannot bear more of them."""
        return any(decision.shed for decision in self.rejected_by)

    @property
    def banned(self) -> bool:
        """True when the request is rejected because its client is banned from a rule."""
        return any(decision.banned for decision in self.rejected_by)

    @property
    def denied(self) -> bool:
        """True when a deny list rejected the request. No limit was decided, and waiting does not help."""
        return not self.allowed and not self.decisions

    @property
    def status(self) -> int:
        """The HTTP status of a rejection; 200 when allowed.

        429 for a limit and a ban, 403 for a deny list (``denied``), 503 for an unreachable store (``unavailable``) and
        for a service that cannot bear more requests (``shed``).
        """
        if self.allowed or not self.decisions:
            return 200 if self.allowed else 403
        for decision in self.decisions:
            if decision.why == UNAVAILABLE or (decision.why == SHED and not decision.hit[0].shadow):
                return 503
        return 429

    @property
    def receipt(self) -> Receipt:
        """The record of the consumed cost. Internal; created on first use."""
        return self.open_receipt or self._open_receipt()

    def _open_receipt(self) -> Receipt:
        with lock:  # several threads may ask at the same time
            self.open_receipt = self.open_receipt or Receipt(self.decisions, self.allowed)
            return self.open_receipt

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the decisions. Another process cannot settle them."""
        return Verdict, (list(self.decisions), self.allowed)

    def __repr__(self) -> str:
        return f"Verdict(allowed={self.allowed}, retry_after={self.retry_after}, decisions={list(self.decisions)})"


class BannedVerdict(Verdict):
    """The rejection of a client that an operator has banned from all rules.

    Args:
        left: The seconds until the end of the ban; None for a ban without an end.
    """

    left: float | None = None

    @property
    def retry_after(self) -> float | None:
        return self.left

    @property
    def banned(self) -> bool:
        return True

    @property
    def denied(self) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ((), False, None, None, None, False, self.left)


class CombinedVerdict(Verdict):
    """Several verdicts on one request, as one: see ``combine_verdicts``."""

    groups: tuple[Sequence[Verdict], ...] = ()

    @property
    def parts(self) -> Sequence[Verdict]:
        return tuple(dict.fromkeys(part for verdicts in self.groups for one in verdicts for part in one.parts))

    @property  # type: ignore[misc] # a field of the base class
    def decisions(self) -> Sequence[Decision]:  # type: ignore[override] # it is read only
        return [decision for part in self.parts for decision in part.decisions]


def combine_verdicts(*groups: Sequence[Verdict]) -> CombinedVerdict:
    """Return several verdicts as one, which includes allowed verdicts that are added to its lists later."""
    return CombinedVerdict(allowed=all(map(all, groups)), groups=groups)


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
            verdict.receipt.stated[self._rule] = REFUND
        self._settle()

    def count(self) -> None:
        """Count this request for every status of its response. You use it with ``count_when = {marked = true}``."""
        for verdict in self._verdicts:
            verdict.receipt.marked.add(self._rule)
        self._settle()

    def reset(self) -> None:
        """Set all counts under the key of this rule to zero, this request included. It takes effect at once."""
        for verdict in self._verdicts:
            if verdict.settlement is not None:
                verdict.settlement.forget(verdict, self._rule)

    def _settle(self) -> None:
        for verdict in self._verdicts:
            settle_now(verdict)


def settle_now(verdict: Verdict) -> None:
    """Apply the stated costs of a verdict, unless a middleware does so at the end of the response."""
    if verdict.settlement is not None and not verdict.settles_at_end:
        verdict.settlement.settle_stated(verdict)


def state_cost(parts: Sequence[Verdict], rule: str, cost: int) -> None:
    """State the true cost of a rule at the last hit of each key. Earlier hits without a stated cost get the cost 0.

    Raises ``ConfigError`` when ``cost`` is not one.
    """
    checked_cost(cost)
    seen = set[tuple[object, str]]()
    for part in reversed(parts):
        if rule in part:
            keys = {(part.settlement, decision.key) for decision in part.decisions if decision.rule == rule}
            if seen.isdisjoint(keys):
                part.receipt.stated[rule] = cost
            else:
                part.receipt.stated.setdefault(rule, 0)
            seen |= keys


def rejection_of(error: BaseException | None) -> RateLimitExceeded | None:
    """Return the error if it is a rejection, or the first rejection of a ``TaskGroup`` in which nothing else failed."""
    while isinstance(error, BaseExceptionGroup) and error.split(RateLimitExceeded)[1] is None:
        error = error.exceptions[0]
    return error if isinstance(error, RateLimitExceeded) else None


class RateLimitExceeded(RateLimitError):  # noqa: N818 - the name that users of other limiters look for
    """A request was rejected.

    Args:
        verdict: The verdict, with the limits that rejected and the time to wait.
    """

    verdict: Verdict

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(self.describe(verdict))
        self.verdict = verdict

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verdict,)

    @staticmethod
    def describe(verdict: Verdict) -> str:
        """Return the message for a verdict.

        Args:
            verdict: The verdict, which rejects.

        Returns:
            The limits that reject, and the time to wait.
        """
        limits = ", ".join(f"{d.source.shown_rule} ({d.source.text})" for d in verdict.rejected_by)
        limits = limits or ("a ban" if verdict.banned else "a rule")
        retry = verdict.retry_after
        wait = "waiting does not help" if retry is None else f"retry after {math.ceil(retry)} s"
        return "rejected by a deny list" if verdict.denied else f"rejected by {limits}: {wait}"
