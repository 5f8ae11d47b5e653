"""The ban of a rule: its state, its hits, the rejections that it counts, and how a verdict shows it. Pure, no I/O.

State: the end of the last ban, the number of bans until then, and the time of each rejection since, oldest first. Both
numbers are 0 before the first ban. Stores write rejections with ``charge``; a decision changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from ..quota import MAX_AMOUNT, Quota
from .key_format import prefix_of_rule
from .limit import BANNED, Algorithm, BeforeHit, Charge, Decision, Hit, Limit, make_hit

State = tuple[int, ...] | None

MAX_REJECTIONS: Final = 100
"""The largest ``after``: a state has the time of each rejection."""


class BanTerms(NamedTuple):
    """The option ``ban`` of a rule, in microseconds. With ``after`` 0, each charge starts a ban of length ``first``."""

    after: int
    within: int
    first: int
    growth: int
    longest: int


class Ban(Algorithm):
    """Rejects every cost until the end of a ban. The ``after``-th rejection in ``(t-within, t]`` starts one at ``t``.

    The n-th ban lasts ``first * growth**(n-1)``, at most ``longest``. Bans are forgotten when none was active for
    ``longest``, or at once when they do not grow.
    """

    name = "ban"

    def __init__(self, terms: BanTerms, quota: Quota | None = None) -> None:
        super().__init__(quota or Quota.exact(terms.after or 1, terms.within))
        self.limit = MAX_AMOUNT
        self.after, self.within, self.first, self.growth, self.longest = terms
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
            if length == self.longest:
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


class BanLimit(Limit):
    """A limit that rejects banned clients. A store that decides it counts the rejections by the limits of its rule.

    ``shown``, the first limit of the rule, shows a ban that is known without a decision of the limits.
    """

    shares: ClassVar[bool] = False
    """A neighbour's ban is no ban."""

    def __init__(self, terms: BanTerms, shown: Limit) -> None:
        quota = Quota.exact(terms.after or 1, terms.within)
        super().__init__(
            shown.rule, 0, quota, partial(Ban, terms), shown.shadow, None, shown.on_store_error, 0, shown.unit
        )
        self.values_of, self.names_client, self.local = shown.values_of, shown.names_client, shown.local
        self.terms, self.shown = terms, shown
        self.quiet = Ban(terms).quiet
        # Without a period: a change of the option lifts no ban.
        self.prefix = f"{prefix_of_rule(self.rule)}{Ban.name}||"

    def lasting(self, us: int) -> BanLimit:
        """Return the ban whose ``charge`` bans a client at once, for some microseconds."""
        return BanLimit(self.terms._replace(after=0, first=us), self.shown)

    def local_part(self, parts: int) -> BanLimit:
        """Return the ban for local counting: each process counts all rejections that it knows."""
        limit = copy.copy(self)
        limit.shown = self.shown.local_part(parts)
        limit.local = True
        return limit


def count_hits(hits: Sequence[Hit]) -> int:
    """Return the number of hits, without those of ``BeforeHit`` and those on bans."""
    return sum(not isinstance(hit, BeforeHit) and not isinstance(hit.limit, BanLimit) for hit in hits)


def banned_rules(decisions: Iterable[Decision]) -> set[str]:
    """Return the rules from which the client of a request is banned."""
    return {each.hit[0].rule for each in decisions if isinstance(each.hit[0], BanLimit) and not each.allowed}


def with_added_hits(hits: Iterable[Hit], consume: bool) -> list[Hit]:
    """Return the hits that the store decides.

    Adds a hit on the ban before the first hit of each rule that has one, unless many clients may have the key. If the
    request consumes, adds a hit without a cost before each hit whose outcome decides whether it counts, except slots.
    """
    bans: set[str] = set()
    every: list[Hit] = []
    for hit in hits:
        limit, key, cost = hit
        if limit.ban is not None and limit.rule not in bans and limit.names_client(key[len(limit.prefix) :]):
            bans.add(limit.rule)
            every.append(make_hit((limit.ban, limit.ban.key_of(limit, key), int(cost))))
        if consume and limit.statuses is not None and not limit.quota.concurrent:
            every.append(BeforeHit(limit, key, 0))
        every.append(hit)
    return every


def count_rejections(
    hits: Sequence[Hit], states: Sequence[Any], now: int, decisions: list[Decision], writes: list[tuple[Hit, Any]]
) -> None:
    """Count one rejection for each rule that has rejected, on its ban. A rejection that starts a ban waits for its end.

    The decisions of the bans are replaced, and their states added to ``writes``.
    """
    for i, (hit, state) in enumerate(zip(hits, states, strict=True)):
        ban = hit[0]
        if not (isinstance(ban, BanLimit) and decisions[i].allowed):
            continue
        rejecting = [d for d in decisions if not d.allowed and d.hit[0].rule == ban.rule and d.hit[0].ban is not None]
        if rejecting:
            kept = ban.algorithm.charge(state, now, 1)
            writes.append((hit, kept))
            decisions[i] = ban.decide(kept, now, 0)[1]
            decisions[i].hit = hit
            wait = ban.decide(kept, now, 1)[1].retry_us or 0
            for decision in rejecting:
                if decision.retry_us is not None:
                    decision.retry_us = max(decision.retry_us, wait)


def show_bans(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions of the limits alone. Those of a rule show that its client is banned."""
    shown = [decision for decision in decisions if not isinstance(decision.hit[0], BanLimit)]
    bans = [(each.hit[0], each) for each in decisions if isinstance(each.hit[0], BanLimit)]
    bans = [(ban, each) for ban, each in bans if not (each.remaining or each.why)]
    by_ban: dict[str, list[int]] = {}
    for i, (limit, key, _) in enumerate(each.hit for each in shown if bans):
        if limit.ban is not None:
            by_ban.setdefault(limit.ban.key_of(limit, key), []).append(i)
    for ban, decision in bans:
        _show_ban(shown, by_ban.get(decision.hit[1], ()), ban, decision)
    return shown


def _show_ban(shown: list[Decision], own: Sequence[int], ban: BanLimit, decision: Decision) -> None:
    left = decision.reset_us - ban.quiet
    if decision.allowed and any(not shown[i].allowed for i in own):  # they have started the ban
        for each in (shown[i] for i in own):
            each.reset_us = max(each.reset_us, 0 if each.allowed else each.retry_us or 0)
        return
    for i in own:
        shown[i] = _with_ban(shown[i], decision, left)
    if not own:  # the ban was known without the limits
        hit = (ban.shown, ban.shown.key_of(ban, decision.hit[1]), decision.hit[2])
        shown.append(_with_ban(Decision(True, 0, 0, 0, decision.at_us, 0, hit), decision, left))


def _with_ban(own: Decision, ban: Decision, left: int) -> Decision:
    """Return the decision of a limit during a ban. A wait for the limit itself may be longer."""
    retry = None if own.retry_us is None else max(left, own.retry_us)
    retry, reset = 0 if ban.allowed else retry, max(left, own.reset_us)
    return Decision(ban.allowed, 0, retry, reset, ban.at_us, 0, own.hit, BANNED)


def reject_uncounted(decisions: Iterable[Decision], retry_us: int) -> None:
    """Reject the hits that a store could not count, in place. Only a ban rejects a hit on it."""
    for each in decisions:
        if each.allowed and each.hit[2] and not isinstance(each.hit[0], BanLimit):
            each.allowed, each.remaining, each.delay_us = False, 0, 0
            each.retry_us, each.reset_us = retry_us, max(retry_us, each.reset_us)
