"""``EarlyVerdict``: the result of a request that no store decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .decision import Decision, build_denial
from .verdict import Verdict

if TYPE_CHECKING:
    from ..algorithms.limit import Limit


class EarlyVerdict(Exception):  # noqa: N818 - it is a result, not an error
    """A list, a missing key or unknown limits decide the request, so no store is called. The package handles it."""

    def __init__(self, allowed: bool, limits: Sequence[Limit] = (), unavailable: bool = False) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.limits = limits
        self.unavailable = unavailable

    def verdict(self, now: int) -> Verdict:
        """Return the verdict at ``now``. Unless it is unavailable, it has no ``retry_after``: a wait does not help."""
        hits = [(limit, "", 0) for limit in self.limits]
        if self.unavailable:
            return Verdict([build_denial(hit, now) for hit in hits], False)
        decisions = [Decision(False, 0, None, 0, now) for _ in hits]
        for decision, hit in zip(decisions, hits, strict=True):
            decision.hit = hit
        return Verdict(decisions, self.allowed)
