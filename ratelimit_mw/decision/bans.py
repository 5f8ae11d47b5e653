"""Hits that are added to a request, the rejections that bans count, and how a verdict shows bans. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .decision import Banned, BeforeHit, Decision, Hit, make_hit

if TYPE_CHECKING:
    from ..algorithms.limit import BanLimit


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

    Args:
        hits: The hits of the request.
        states: The state of each hit.
        now: The time in whole microseconds.
        decisions: The decision on each hit. Those of the bans are replaced.
        writes: The states to write. Those of the bans are added.
    """
    for i, (hit, state) in enumerate(zip(hits, states, strict=True)):
        ban = hit.limit
        if not (ban.is_ban and decisions[i].allowed):
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
    shown = [decision for decision in decisions if not decision.hit[0].is_ban]
    bans = [each for each in decisions if each.hit[0].is_ban and not (each.remaining or each.unavailable)]
    by_ban: dict[str, list[int]] = {}
    for i, (limit, key, _) in enumerate(each.hit for each in shown if bans):
        if limit.ban is not None:
            by_ban.setdefault(limit.ban.key_of(limit, key), []).append(i)
    for ban in bans:
        _show_ban(shown, by_ban.get(ban.hit[1], ()), cast("BanLimit", ban.hit[0]), ban)
    return shown


def _show_ban(shown: list[Decision], own: Sequence[int], ban: BanLimit, decision: Decision) -> None:
    left = decision.reset_us - ban.quiet
    if decision.allowed and any(not shown[i].allowed for i in own):  # they have started the ban
        for each in (shown[i] for i in own):
            each.reset_us = max(each.reset_us, 0 if each.allowed else each.retry_us or 0)
        return
    for i in own:
        shown[i] = _banned(shown[i], decision, left)
    if not own:  # the ban was known without the limits
        hit = (ban.shown, ban.shown_key(decision.hit[1]), decision.hit[2])
        shown.append(_banned(Decision(True, 0, 0, 0, decision.at_us, 0, hit), decision, left))


def _banned(own: Decision, ban: Decision, left: int) -> Banned:
    """Return the decision of a limit during a ban. A wait for the limit itself may be longer."""
    retry = None if own.retry_us is None else max(left, own.retry_us)
    return Banned(ban.allowed, 0, 0 if ban.allowed else retry, max(left, own.reset_us), ban.at_us, 0, own.hit)


def reject_uncounted(decisions: Iterable[Decision], retry_us: int) -> None:
    """Reject the hits that a store could not count, in place. Only a ban rejects a hit on it.

    Args:
        decisions: The decisions as they are without the cost of their hits.
        retry_us: The time until another attempt, in microseconds.
    """
    for each in decisions:
        if each.allowed and each.hit[2] and not each.hit[0].is_ban:
            each.allowed, each.remaining, each.delay_us = False, 0, 0
            each.retry_us, each.reset_us = retry_us, max(retry_us, each.reset_us)
