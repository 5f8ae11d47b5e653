"""What a verdict has consumed and not got back yet, and the changes that make it another amount. Pure data, no I/O."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .forksafe import create_lock

if TYPE_CHECKING:
    from .algorithms.limit import Limit
    from .decision import Verdict

__all__ = ["Correction", "PendingCorrection", "Settles", "Receipt", "Charge"]

_noting = create_lock(sys.modules[__name__], "_noting", threading.RLock)


class Charge(NamedTuple):
    """What a hit has consumed: at which store time (microseconds), how much, and after which delay."""

    at_us: int
    cost: int
    delay_us: int = 0


class Correction(NamedTuple):
    """A correction after the fact: ``cost`` of what was ``consumed`` is given back, or, with None, charged anew."""

    limit: Limit
    key: str
    cost: int
    consumed: Charge | None


class OpenCharge:
    """What is still consumed of a hit, or of a charge after it; ``at_us`` None: no store has said yet when."""

    __slots__ = ("at_us", "cost", "delay_us")

    def __init__(self, at_us: int | None, cost: int, delay_us: int = 0) -> None:
        self.at_us = at_us
        self.cost = cost
        self.delay_us = delay_us


class PendingCorrection(NamedTuple):
    """A change, and the part of a hit's parts that it is noted on."""

    parts: list[OpenCharge]
    part: OpenCharge
    change: Correction


class Settles(Protocol):
    """What can settle a verdict: a limiter."""

    def settle(self, verdict: Verdict, cost: int) -> None: ...


class Receipt:
    """The account of one verdict. What is asked of a store is noted before, so that it is asked once, whoever asks."""

    def __init__(self, verdict: Verdict, consumed: bool = True, store: Any = None, unavailable: bool = False) -> None:
        self._verdict = verdict
        self.store = store
        self.unavailable = unavailable
        self._consumes = consumed
        self._consumed: list[list[OpenCharge] | None] | None = None
        self._settles: Settles | None = None
        self.true_cost: int | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> Receipt:
        """The one account of a verdict, whoever asks first."""
        with _noting:
            verdict.receipt = verdict.receipt or cls(verdict)
            return verdict.receipt

    def _parts(self) -> list[list[OpenCharge] | None]:
        """The parts of each hit, made when they are asked for; None where nothing may be consumed."""
        if self._consumed is None:
            consumes = self._consumes and self._verdict.allowed
            self._consumed = [
                [OpenCharge(decision.at_us, cost, decision.delay_us)] if consumes and decision.allowed else None
                for (_, _, cost), decision in zip(self._verdict.hits, self._verdict.decisions, strict=True)
            ]
        return self._consumed

    def state(self, cost: int) -> None:
        """Note the true cost; settle it at once when the response is out of the adapter's hands."""
        self.true_cost = cost
        if self._settles is not None:
            self._settles.settle(self._verdict, cost)

    def settle_with(self, limiter: Settles) -> None:
        """From now on a stated cost is settled at once; so is one that was stated before."""
        self._settles = limiter
        if self.true_cost is not None:
            limiter.settle(self._verdict, self.true_cost)

    def changes(self, due: Sequence[int | None]) -> list[PendingCorrection]:
        """What makes ``due`` the amount that each hit has consumed, noted as done; the newest is given back first.

        None: as it is.
        """
        with _noting:
            return [
                noted
                for (limit, key, _), parts, target in zip(self._verdict.hits, self._parts(), due, strict=True)
                if parts is not None and target is not None
                for noted in _towards(target, limit, key, parts)
            ]

    @staticmethod
    def answered(noted: Sequence[PendingCorrection], times: Sequence[int | None] | None) -> None:
        """What became of changes: a store's ``times``, None where it did not say; None for all: it was not asked.

        A change that a store may have carried out stays noted: asked again, it might be carried out twice.
        """
        with _noting:
            for (parts, part, change), at in zip(noted, times or [None] * len(noted), strict=True):
                if times is None:
                    part.cost += -change.cost if change.consumed is None else change.cost
                elif change.consumed is None and at is not None:
                    _count(parts, part, at, change.limit)

    def renewals(self) -> list[Correction]:
        """What keeps the slots that are held: a give-back of nothing."""
        with _noting:
            return [
                Correction(limit, key, 0, Charge(part.at_us, part.cost))
                for (limit, key, _), parts in zip(self._verdict.hits, self._parts(), strict=True)
                for part in parts or ()
                if limit.quota.concurrent and part.at_us is not None
            ]


def _towards(target: int, limit: Limit, key: str, parts: list[OpenCharge]) -> Iterator[PendingCorrection]:
    over = sum(part.cost for part in parts) - target
    if over < 0:
        part = OpenCharge(None, -over)
        parts.append(part)
        yield PendingCorrection(parts, part, Correction(limit, key, -over, None))
    for part in reversed(parts):
        back = min(over, part.cost)
        if back > 0 and part.at_us is not None:
            consumed = Charge(part.at_us, part.cost, part.delay_us)
            part.cost -= back
            over -= back
            yield PendingCorrection(parts, part, Correction(limit, key, back, consumed))


def _count(parts: list[OpenCharge], part: OpenCharge, at: int, limit: Limit) -> None:
    """Note when a charge was counted."""
    before = parts[parts.index(part) - 1]
    if limit.algorithm.delays and not _is_served(before, at, limit):
        # In a queue it stands behind the hit, as one with it: to be given back while nobody stands on both.
        before.cost += part.cost
        parts.remove(part)
        return
    # A clock that went back since the hit counts where the hit was counted.
    part.at_us = at if limit.algorithm.delays else max(at, *(known.at_us or 0 for known in parts))


def _is_served(part: OpenCharge, now: int, limit: Limit) -> bool:
    """Whether all of a queue's part had drained by ``now``."""
    algorithm = limit.algorithm
    starts = 0 if part.at_us is None else part.at_us + part.delay_us
    return starts * algorithm.amount + part.cost * algorithm.period <= now * algorithm.amount
