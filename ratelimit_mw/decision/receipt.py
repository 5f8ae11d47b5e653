"""The record of the cost that a verdict has consumed, and the corrections that change it. Pure data, no I/O."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from ..runtime.forksafe import create_lock
from .limit import Charge, Correction, Decision, Limit, charge_of

lock = create_lock(sys.modules[__name__], "lock", threading.RLock)
"""The lock of all receipts."""


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


REFUND: Final = -1
"""Stated as the cost of a rule, it refunds all, and returns the slots."""


class Receipt:
    """The record of one verdict. A correction is recorded before it is sent, so concurrent callers send it once.

    A request that ``has_consumed`` nothing has no corrections: a rejected one, and a peek. ``stated`` has the cost that
    was stated for each rule, or ``REFUND``. ``marked`` has the rules that count for any status. ``status`` is the one
    of the response, None if it is not known. ``before`` has the decisions without the cost of this request, for limits
    that count by outcome.
    """

    def __init__(
        self,
        decisions: Sequence[Decision],
        has_consumed: bool = True,
        before: Mapping[Limit, Decision] = MappingProxyType({}),
    ) -> None:
        self._decisions, self._has_consumed = decisions, has_consumed
        self._charges: list[tuple[Decision, list[OpenCharge]]] | None = None
        self.stated: dict[str, int] = {}
        self.marked: set[str] = set()
        self.before = before
        self.has_ended = False
        self.status: int | None = None

    def corrections(self, due: Callable[[Decision], int | None]) -> list[PendingCorrection]:
        """Record the corrections that make ``due`` the consumed cost of each hit. None leaves a hit unchanged."""
        with lock:
            return [
                pending
                for decision, charges in self._open_charges()
                if (target := due(decision)) is not None
                for pending in _towards(target, decision.source, decision.hit[1], charges)
            ]

    def due(self, decision: Decision) -> int | None:
        """Return the stated cost of a rule, 0 for an outcome that does not count. An ended request holds no slots."""
        limit = decision.source
        stated = self.stated.get(limit.rule)
        if limit.quota.concurrent:
            return 0 if self.has_ended or stated == REFUND else None
        if stated == REFUND or not self.counts(limit, self.status):
            return 0
        return int(decision.hit[2]) if stated is None and limit.statuses is not None else stated

    def counts(self, limit: Limit, status: int | None) -> bool:
        """Return whether a response counts. A response that is not known counts."""
        statuses = limit.statuses
        return statuses is None or status is None or status in statuses or limit.rule in self.marked

    def decisions(self, status: int) -> list[Decision]:
        """Return the decisions as they are after a response of this status."""
        return [d if self.counts(d.source, status) else self.before.get(d.source, d) for d in self._decisions]

    def consumed(self) -> list[tuple[Decision, int]]:
        """Return each decision that consumed, with the cost of its hit after all corrections."""
        with lock:
            return [(decision, sum(each.cost for each in charges)) for decision, charges in self._open_charges()]

    def drop(self, rule: str) -> None:
        """Forget the charges of a rule whose keys are reset, outcomes too. Headers show the rule as it is then."""
        with lock:
            self.stated[rule] = REFUND
            for charge in (each for d, charges in self._open_charges() if d.rule == rule for each in charges):
                charge.cost = 0
        decisions = (*self._decisions, *self.before.values()) if self._has_consumed else ()
        for decision in (each for each in decisions if each.rule == rule):
            _, fresh = decision.source.decide(None, decision.at_us, 0)
            decision.remaining, decision.reset_us = fresh.remaining, fresh.reset_us

    @staticmethod
    def cancel(pending: Sequence[PendingCorrection]) -> None:
        """Undo the record of corrections that were not sent."""
        with lock:
            for _, charge, correction in pending:
                charge.cost += -correction.cost if correction.consumed is None else correction.cost

    @staticmethod
    def confirm(pending: Sequence[PendingCorrection], times: Sequence[int]) -> None:
        """Record the store's times. Without them a correction stays recorded, because the store may have made it."""
        with lock:
            for (charges, charge, correction), at in zip(pending, times, strict=True):
                if correction.consumed is None:
                    _record_time(charges, charge, at, correction.limit)

    def renewals(self) -> list[Correction]:
        """Build the corrections that renew the slots: each returns a cost of 0."""
        with lock:
            return [
                Correction(decision.source, decision.hit[1], 0, Charge(charge.at_us, charge.cost))
                for decision, charges in self._open_charges()
                for charge in charges
                if decision.quota.concurrent and charge.at_us is not None and charge.cost
            ]

    def _open_charges(self) -> list[tuple[Decision, list[OpenCharge]]]:
        """Return the charges of each decision that consumed. Built on first use."""
        if self._charges is None:
            decisions = [d for d in self._decisions if self._has_consumed and d.allowed and not d.hit[0].sheds]
            self._charges = [(d, [OpenCharge(*charge_of(d))]) for d in decisions]
        return self._charges


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
    algorithm, before = limit.algorithm, charges[charges.index(charge) - 1]
    if algorithm.delays:
        starts = 0 if before.at_us is None else before.at_us + before.delay_us
        if starts * algorithm.amount + before.cost * algorithm.period > at * algorithm.amount:
            # The queue still holds the hit, so hit and charge count as one: both can be returned while they are last.
            before.cost += charge.cost
            charges.remove(charge)
            return
    # When the clock has gone back since the hit, the store counts at the time of the hit.
    charge.at_us = at if algorithm.delays else max(at, *(known.at_us or 0 for known in charges))
