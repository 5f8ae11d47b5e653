"""What a limiter answers: a ``Decision`` for each limit, a ``Verdict`` for the request. Pure data, no I/O.

Inside, times are whole microseconds (``*_us``); what users read is in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .clock import SECOND
from .errors import RateLimitExceeded
from .quota import checked_cost
from .receipt import Charge, Correction, Receipt

if TYPE_CHECKING:
    from .algorithms.limit import Limit
    from .quota import Quota

__all__ = ["Correction", "Decision", "Hit", "Charge", "Verdict"]


class Decision:
    """The answer of one limit.

    With "5/minute" after the third hit of a fixed window, 20 s into it: ``allowed`` True, ``limit`` 5,
    ``remaining`` 2, ``reset_after`` 40.0, ``retry_after`` 0.0.
    """

    __slots__ = ("allowed", "at_us", "delay_us", "remaining", "reset_us", "retry_us", "source")

    source: Limit

    def __init__(
        self,
        allowed: bool,
        remaining: int,
        retry_us: int | None,
        reset_us: int,
        at_us: int,
        delay_us: int = 0,
    ) -> None:
        self.allowed = allowed
        self.remaining = remaining
        self.retry_us = retry_us
        self.reset_us = reset_us
        self.at_us = at_us
        self.delay_us = delay_us

    @property
    def rule(self) -> str:
        """The name of the rule."""
        return self.source.rule

    @property
    def quota(self) -> Quota:
        return self.source.quota

    @property
    def limit(self) -> int:
        """The most that can pass at once: the quota's amount, or a bucket's capacity."""
        return self.source.limit

    @property
    def shadow(self) -> bool:
        """True for a rule that only watches: it never rejects."""
        return self.source.shadow

    @property
    def retry_after(self) -> float | None:
        """Seconds until this same cost would be allowed; 0.0 when allowed, None when it can never fit."""
        return None if self.retry_us is None else self.retry_us / SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the state cannot be told from a fresh one."""
        return self.reset_us / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait before going on (leaky-bucket queue), else 0.0."""
        return self.delay_us / SECOND

    @property
    def at(self) -> float:
        """The store's time of the hit, in seconds since 1970."""
        return self.at_us / SECOND

    def __repr__(self) -> str:
        return (
            f"Decision(rule={self.rule!r}, quota='{self.quota}', allowed={self.allowed}, limit={self.limit},"
            f" remaining={self.remaining}, reset_after={self.reset_after}, retry_after={self.retry_after})"
        )


class Hit(NamedTuple):
    """One key charged with one cost under one limit."""

    limit: Limit
    key: str
    cost: int


make_hit: Callable[[tuple[Limit, str, int]], Hit] = partial(tuple.__new__, Hit)
"""A ``Hit`` from its three fields, faster than calling the class."""


class Verdict:
    """The answer to one request. True when it is allowed, so ``if verdict:`` means what it says.

    >>> verdict = Verdict((), ())
    >>> bool(verdict), verdict.retry_after, verdict.rules
    (True, 0.0, ())
    """

    __slots__ = ("allowed", "decisions", "hits", "receipt")

    def __init__(
        self, hits: Sequence[tuple[Limit, str, int]], decisions: Sequence[Decision], allowed: bool = True
    ) -> None:
        self.hits = hits
        self.decisions = decisions
        self.allowed = allowed
        self.receipt: Receipt | None = None

    @classmethod
    def of(
        cls,
        hits: Sequence[Hit],
        decisions: Sequence[Decision],
        consumed: bool = True,
        store: Any = None,
        unavailable: bool = False,
    ) -> Verdict:
        """The answer that the decisions make. ``store``: where it was consumed, if not where all is consumed."""
        allowed = True
        for decision in decisions:
            if not decision.allowed and not decision.source.shadow:
                allowed = False
        verdict = cls(hits, decisions, allowed)
        if not consumed or store is not None:
            verdict.receipt = Receipt(verdict, consumed, store, unavailable)
        return verdict

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def rejected_by(self) -> list[Decision]:
        """The decisions that rejected the request; shadow rules are never among them."""
        return [] if self.allowed else [d for d in self.decisions if not d.allowed and not d.source.shadow]

    @property
    def retry_us(self) -> int | None:
        waits = [d.retry_us for d in self.rejected_by]
        return None if None in waits or self.denied else max(waits, default=0)  # type: ignore[type-var]

    @property
    def retry_after(self) -> float | None:
        """Seconds: 0.0 when allowed, the largest of the rejecting limits', None when it can never fit."""
        wait = self.retry_us
        return None if wait is None else wait / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait before going on: the largest of the decisions' delays; 0.0 when rejected."""
        if not self.allowed:
            return 0.0
        return max((d.delay_us for d in self.decisions if not d.source.shadow), default=0) / SECOND

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that looked at the request, in their order."""
        return tuple(dict.fromkeys(d.rule for d in self.decisions))

    def settle(self, cost: int) -> None:
        """State the true cost of the request; the adapter applies it once the response is sent.

        Outside an adapter use ``limiter.settle(verdict, cost)``. ``ConfigError`` for anything but a whole number.
        """
        self.spending.state(checked_cost(cost))

    @property
    def true_cost(self) -> int | None:
        """The cost that was stated, if any."""
        return None if self.receipt is None else self.receipt.true_cost

    def raise_for_limit(self) -> None:
        """Raise ``RateLimitExceeded`` when rejected, else do nothing."""
        if not self.allowed:
            raise RateLimitExceeded(self)

    @property
    def unavailable(self) -> bool:
        """True when it was rejected because the store did not answer: a matter of ours, not of the client's."""
        return self.receipt is not None and self.receipt.unavailable

    @property
    def denied(self) -> bool:
        """True when it was rejected by a deny list: no limit has a say, and waiting does not help."""
        return not self.allowed and not self.decisions

    @property
    def status(self) -> int | None:
        """The status that HTTP has for a rejection, None when allowed.

        429 is "you, now", 403 "you, ever" (``denied``), 503 "we" (``unavailable``).
        """
        return None if self.allowed else 403 if self.denied else 503 if self.unavailable else 429

    @property
    def spending(self) -> Receipt:
        """The account of what this verdict has consumed; kept by the limiter."""
        return self.receipt or Receipt.of(self)

    def __repr__(self) -> str:
        return f"Verdict(allowed={self.allowed}, retry_after={self.retry_after}, decisions={list(self.decisions)})"
