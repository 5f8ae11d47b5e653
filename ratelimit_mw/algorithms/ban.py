"""The ban of a rule: it counts the rejections of a client, and rejects all requests of a client that is banned.

State: the end of the last ban, the number of bans until then, and the time of each rejection since, oldest first. Both
numbers are 0 before the first ban. Stores write rejections with ``charge``; a decision changes nothing.
"""

from typing import Final, NamedTuple

from ..decision import Decision
from ..quota import MAX_AMOUNT, Quota
from ..receipt import Charge
from .base import Algorithm

State = tuple[int, ...] | None

MOST_REJECTIONS: Final = 100
"""The largest ``after``: a state has the time of each rejection."""


class BanTerms(NamedTuple):
    """The option ``ban`` of a rule. Times are in microseconds.

    Args:
        after: The number of rejections that starts a ban. With 0, each charge starts one of the length ``first``.
        within: The span of these rejections.
        first: The length of the first ban.
        growth: Each ban is this many times as long as the one before it.
        longest: The length of the longest ban.
        status: The HTTP status for banned clients.
    """

    after: int
    within: int
    first: int
    growth: int
    longest: int
    status: int = 429


class Ban(Algorithm):
    """Rejects every cost until the end of a ban. The ``after``-th rejection in ``(t-within, t]`` starts one at ``t``.

    The n-th ban lasts ``first * growth**(n-1)``, at most ``longest``. Bans are forgotten when none was active for
    ``longest``, or at once when they do not grow.
    """

    name = "ban"

    def __init__(self, terms: BanTerms) -> None:
        super().__init__(Quota.exact(terms.after or 1, terms.within))
        self.limit = MAX_AMOUNT
        self.after, self.within, self.first, self.growth, self.longest, _ = terms
        self.quiet = self.longest if self.growth > 1 else 0
        """The time after the end of a ban until bans are forgotten."""

    @property
    def lifetime(self) -> int:
        """The lifetime of rejections. ``reset_us`` shows that a ban is kept longer."""
        return self.within

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        if state is None:
            return None, Decision(True, self.limit, 0, 0, now)
        end, _, *rejections = state
        newest = rejections[-1] if rejections else 0
        forgotten_at = end + self.quiet if end else 0
        if rejections:
            forgotten_at = max(forgotten_at, newest + self.within)
        reset = max(0, forgotten_at - now)
        if now < end:
            retry = 0 if cost == 0 else end - now
            return state, Decision(cost == 0, 0, retry, reset, now)
        return state, Decision(True, self.limit, 0, reset, max(now, newest))

    def charge(self, state: State, now: int, cost: int) -> State:
        """Count one rejection, for any cost. During a ban, nothing is counted."""
        end, bans, *rejections = state or (0, 0)
        if self.after and now < end:
            return state
        if now >= end + self.quiet:
            end, bans = 0, 0
        at = max(now, rejections[-1]) if rejections else now
        if not self.after:
            return at + self.first, bans
        recent = [time for time in rejections if time > at - self.within]
        recent.append(at)
        if len(recent) < self.after:
            return (end, bans, *recent)
        return at + self._length(bans), bans + 1

    def _length(self, bans: int) -> int:
        length = self.first
        for _ in range(bans):
            if length == self.longest or self.growth == 1:
                break
            length = min(self.longest, length * self.growth)
        return length

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        """Take back a rejection, unless it has started a ban."""
        end, bans, *rejections = state or (0, 0)
        if consumed.at_us not in rejections:
            return state
        rejections.remove(consumed.at_us)
        return (end, bans, *rejections) if end or rejections else None
