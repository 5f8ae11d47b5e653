"""``LastDecision``: the last decision of the store on a key. During an outage, a process continues from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...decision import BanLimit, Charge, Correction

if TYPE_CHECKING:
    from ...decision import Hit, Limit
    from ...stores import MemoryStore


class LastDecision(NamedTuple):
    """The quota that remained after a decision, the time of the decision, and the time until its reset.

    ``began_us`` is the time of the first decision on the same count. A refund of an earlier charge is void.
    """

    rest: int
    at_us: int
    reset_us: int
    began_us: int

    def corrected(self, change: Correction, at: int) -> LastDecision:
        """Return the decision as it is after a correction at the time ``at``."""
        limit, _, cost, consumed = change
        if self.at_us > at:  # the store has decided after the correction
            return self
        if consumed is not None and consumed.at_us < self.began_us and not limit.quota.concurrent:
            return self
        if consumed is not None:
            return self._replace(rest=min(limit.algorithm.limit, self.rest + refunded(limit, consumed, cost, at)))
        rest = self.rest if at < self.at_us + self.reset_us else limit.algorithm.limit
        rest = max(0, rest - cost)
        return self._replace(rest=rest, at_us=at, reset_us=_time_to_reset(limit, limit.algorithm.limit - rest, at))

    def carry_over(self, hit: Hit, local: Limit, size: int, store: MemoryStore, now: int) -> None:
        """Leave a key in ``store`` at most one of ``size`` shares of the remaining quota, until the same reset."""
        if self.at_us + self.reset_us <= now:
            return
        if isinstance(local, BanLimit):
            if not self.rest and (left := self.at_us + self.reset_us - local.quiet - now) > 0:
                store.correct([Correction(local.lasting(left), hit.key, 1, None)], now)
            return
        local = local.leaving(0) if local.held else local  # that of all classes
        at, share = min(self.at_us, now), -(-self.rest // size)
        later = max(0, _time_to_reset(hit.limit, hit.limit.algorithm.limit - self.rest, at) - self.reset_us)
        # The second charge is for algorithms that count an earlier charge less.
        for moment in (at - later, at):
            (here,) = store.apply([hit._replace(limit=local, cost=0)], moment, consume=False)
            if here.remaining > share:
                store.correct([Correction(local, hit.key, here.remaining - share, None)], moment)


def refunded(limit: Limit, consumed: Charge, cost: int, at: int) -> int:
    """Return how much more remains after a refund: nothing for a cost that has left the window or has drained."""
    if limit.quota.concurrent:
        return cost
    if limit.algorithm.delays:  # a later request may have the place behind it
        return 0
    alone = limit.algorithm.charge(None, consumed.at_us, consumed.cost)
    refunded = limit.algorithm.refund(alone, at, consumed, cost)
    return limit.algorithm.decide(refunded, at, 0)[1].remaining - limit.algorithm.decide(alone, at, 0)[1].remaining


def _time_to_reset(limit: Limit, cost: int, at: int) -> int:
    return limit.algorithm.decide(limit.algorithm.charge(None, at, cost), at, 0)[1].reset_us
