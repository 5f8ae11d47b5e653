"""A slow reference of one rule with a ban, by its definition: lists of rejections and of bans. No code is shared."""

from typing import NamedTuple

from reference_base import Reference


class BanResult(NamedTuple):
    """The result of one request under the rule."""

    allowed: bool
    banned: bool
    retry_after: int | None


class BanReference:
    """One client under one limit. ``first`` and ``longest`` are lengths of bans, all times whole microseconds."""

    def __init__(self, limit: Reference, after: int, within: int, first: int, growth: int, longest: int) -> None:
        self.limit = limit
        self.after, self.within = after, within
        self.first, self.growth, self.longest = first, growth, longest
        self.rejections: list[int] = []
        self.bans: list[tuple[int, int]] = []

    def hit(self, t: int, cost: int) -> BanResult:
        if cost == 0:
            return BanResult(True, False, 0)
        if self.bans and t < self.bans[-1][1]:
            waits: list[int | None] = [self.bans[-1][1] - t]
            if not self.limit.fits(max(t, self.limit.last), cost):
                waits.append(self.limit.hit(t, cost)[0].retry_after)
            return BanResult(False, True, _longest(waits))
        result, _ = self.limit.hit(t, cost)
        if result.allowed:
            return BanResult(True, False, 0)
        self.rejections.append(t)
        recent = [time for time in self.rejections if t - self.within < time <= t]
        if len(recent) < self.after:
            return BanResult(False, False, result.retry_after)
        length = self.length(t)
        self.rejections, self.bans = [], [*self.bans, (t, t + length)]
        return BanResult(False, False, _longest([result.retry_after, length]))

    def length(self, t: int) -> int:
        """Return the length of the ban that starts at ``t``: the n-th without a quiet ``longest`` before it."""
        n, start = 0, t
        for begin, end in reversed(self.bans):
            if start - end >= self.longest:
                break
            n, start = n + 1, begin
        return int(min(self.longest, self.first * self.growth**n))


def _longest(waits: list[int | None]) -> int | None:
    return None if None in waits else max(wait for wait in waits if wait is not None)
