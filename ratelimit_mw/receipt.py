"""The record of the cost that a verdict has consumed, and the corrections that change it. Pure data, no I/O."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .forksafe import create_lock

if TYPE_CHECKING:
    from .algorithms.limit import Limit
    from .decision import Verdict

_lock = create_lock(sys.modules[__name__], "_lock", threading.RLock)


class Charge(NamedTuple):
    """The cost that a hit consumed, with its time by the store's clock (microseconds) and its delay."""

    at_us: int
    cost: int
    delay_us: int = 0


class Correction(NamedTuple):
    """A change after the decision: return ``cost`` of ``consumed``, or charge ``cost`` when that is None.

    A charge is made even beyond the limit.
    """

    limit: Limit
    key: str
    cost: int
    consumed: Charge | None


@dataclass(slots=True, eq=False)
class OpenCharge:
    """A charge that is still consumed. ``at_us`` is None until the store has confirmed an additional charge."""

    at_us: int | None
    cost: int
    delay_us: int = 0


class PendingCorrection(NamedTuple):
    """A correction to send to the store, and the charge of a hit that it changes."""

    charges: list[OpenCharge]
    charge: OpenCharge
    correction: Correction


class Receipt:
    """The record of one verdict. A correction is recorded before it is sent, so concurrent callers send it once."""

    def __init__(self, verdict: Verdict, consumed: bool = True) -> None:
        self._verdict = verdict
        self._consumed = consumed
        self._charges: list[list[OpenCharge] | None] | None = None
        self._settle: Callable[[Verdict, int], None] | None = None
        self.true_cost: int | None = None

    def state_cost(self, cost: int) -> None:
        """Record the true cost. After ``settle_with`` it is settled at once."""
        self.true_cost = cost
        if self._settle is not None:
            self._settle(self._verdict, cost)

    def settle_with(self, settle: Callable[[Verdict, int], None]) -> None:
        """Settle a cost that was stated before now, and each one that will be stated."""
        self._settle = settle
        if self.true_cost is not None:
            settle(self._verdict, self.true_cost)

    def corrections(self, due: Callable[[Limit], int | None]) -> list[PendingCorrection]:
        """Record the corrections that make ``due(limit)`` the consumed cost of each hit; None leaves it unchanged."""
        with _lock:
            return [
                pending
                for decision, charges in zip(self._verdict.decisions, self._open_charges(), strict=True)
                if charges is not None and (target := due(decision.source)) is not None
                for pending in _towards(target, decision.source, decision.hit[1], charges)
            ]

    @staticmethod
    def cancel(pending: Sequence[PendingCorrection]) -> None:
        """Undo the record of corrections that were not sent."""
        with _lock:
            for _, charge, correction in pending:
                charge.cost += -correction.cost if correction.consumed is None else correction.cost

    @staticmethod
    def confirm(pending: Sequence[PendingCorrection], times: Sequence[int]) -> None:
        """Record the store's times. Without them a correction stays recorded, because the store may have made it."""
        with _lock:
            for (charges, charge, correction), at in zip(pending, times, strict=True):
                if correction.consumed is None:
                    _record_time(charges, charge, at, correction.limit)

    def renewals(self) -> list[Correction]:
        """Build the corrections that renew the slots: each returns a cost of 0."""
        with _lock:
            return [
                Correction(decision.source, decision.hit[1], 0, Charge(charge.at_us, charge.cost))
                for decision, charges in zip(self._verdict.decisions, self._open_charges(), strict=True)
                for charge in charges or ()
                if decision.quota.concurrent and charge.at_us is not None
            ]

    def _open_charges(self) -> list[list[OpenCharge] | None]:
        """The charges of each decision, None where nothing was consumed. Built on first use."""
        if self._charges is None:
            consumed = self._consumed and self._verdict.allowed
            self._charges = [
                [OpenCharge(decision.at_us, decision.hit[2], decision.delay_us)]
                if consumed and decision.allowed
                else None
                for decision in self._verdict.decisions
            ]
        return self._charges


def receipt_of(verdict: Verdict) -> Receipt:
    """Return the one receipt of a verdict, also when several threads ask at the same time."""
    with _lock:
        verdict.open_receipt = verdict.open_receipt or Receipt(verdict)
        return verdict.open_receipt


def _towards(target: int, limit: Limit, key: str, charges: list[OpenCharge]) -> Iterator[PendingCorrection]:
    over = sum(charge.cost for charge in charges) - target
    if over < 0:
        charge = OpenCharge(None, -over)
        charges.append(charge)
        yield PendingCorrection(charges, charge, Correction(limit, key, -over, None))
    for charge in reversed(charges):  # the newest first
        back = min(over, charge.cost)
        if back > 0 and charge.at_us is not None:
            consumed = Charge(charge.at_us, charge.cost, charge.delay_us)
            charge.cost -= back
            over -= back
            yield PendingCorrection(charges, charge, Correction(limit, key, back, consumed))


def _record_time(charges: list[OpenCharge], charge: OpenCharge, at: int, limit: Limit) -> None:
    """Record when the store counted an additional charge."""
    before = charges[charges.index(charge) - 1]
    if limit.algorithm.delays and not _has_drained(before, at, limit):
        # The queue still holds the hit, so hit and charge count as one: both can be returned while they are last.
        before.cost += charge.cost
        charges.remove(charge)
        return
    # When the clock has gone back since the hit, the store counts at the time of the hit.
    charge.at_us = at if limit.algorithm.delays else max(at, *(known.at_us or 0 for known in charges))


def _has_drained(charge: OpenCharge, now: int, limit: Limit) -> bool:
    """Whether a queue had drained all of this charge by ``now``."""
    algorithm = limit.algorithm
    starts = 0 if charge.at_us is None else charge.at_us + charge.delay_us
    return starts * algorithm.amount + charge.cost * algorithm.period <= now * algorithm.amount
