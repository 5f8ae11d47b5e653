"""Which requests call the store, by the consistency of the rules, the rejections and the settlements.

A client sends its requests at random times, all clients at one rate, each to any worker.
"""

from __future__ import annotations

from math import exp
from typing import Final

from benchmarks.capacity.costs import Deployment

ANNOUNCED_EVERY: Final = 30.0  # seconds: limiter/remote/fleet.py
CACHED_FOR: Final = 1.0  # seconds: the default of ``rejection_cache``
_LEASES_PER_PERIOD: Final = 20


class CallShares:
    """The shares of requests, between 0 and 1."""

    def __init__(self, plan: Deployment) -> None:
        per_worker = plan.rate / plan.workers
        rejected_rate = per_worker * plan.rejected / max(1, plan.rejected_clients)
        unseen = 1 / (1 + rejected_rate * CACHED_FOR)  # of the rejections: they are not in the rejection cache
        asked, returned = _lease_calls(plan) if plan.is_leased else (1.0, 0.0)
        self.asked = (1 - plan.rejected) * asked + plan.rejected * unseen
        """The requests that call the store."""
        self.rejected = plan.rejected * unseen / self.asked if self.asked else 0.0
        """Of the requests that call the store: those that it rejects."""
        self.returned = returned / self.asked if self.asked else 0.0
        """Of the requests that call the store: those that first refund leases that have ended."""
        self.announced = min(1.0, 1 / ANNOUNCED_EVERY / per_worker)


def _lease_calls(plan: Deployment) -> tuple[float, float]:
    """Return the calls and the refunds for each hit on leases.

    A lease serves its share, or the hits in its life. A key gets a lease when its last hit was within that life.
    """
    life = plan.period / 1e6 / _LEASES_PER_PERIOD
    share = max(1, int(plan.amount * plan.lease))
    expected = plan.rate / plan.workers / plan.clients * life
    if share == 1:
        return 1.0, 0.0
    busy = 1 - exp(-expected)
    served, unused = _served(share, expected)
    hits = busy * served + (1 - busy)
    return 1 / hits, busy * unused / hits


def _served(share: int, expected: float) -> tuple[float, float]:
    """Return the mean hits that a lease serves, and the chance that a part of it stays unused.

    After the first hit, the hits in its life are a Poisson count.
    """
    if expected > 500:  # far from both ends, the count hardly varies
        return min(share, 1 + expected), float(share > 1 + expected)
    chance, below, mean = exp(-expected), 0.0, 0.0
    for count in range(share - 1):
        below += chance
        mean += chance * (1 + count)
        chance *= expected / (count + 1)
        if chance < 1e-12 and count > expected:
            break
    return mean + share * (1 - below), below
