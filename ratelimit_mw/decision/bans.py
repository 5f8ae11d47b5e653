"""Hits that are added to a request, the rejections that bans count, and how a verdict shows bans. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .decision import Banned, BeforeHit, Decision, Hit, make_hit

if TYPE_CHECKING:
    from ..algorithms.ban_limit import BanLimit


def with_added_hits(hits: Iterable[Hit], consume: bool) -> list[Hit]:
    """Return the hits that the store decides.

    In front of the first hit of each rule that has a ban is one on its ban. When the request consumes, one without a
    cost is in front of each hit whose outcome decides whether it counts; slots have none.
    """
    bans: set[str] = set()
    every: list[Hit] = []
    for hit in hits:
        limit, key, cost = hit
        if limit.ban is not None and limit.rule not in bans:
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
    """Return the decisions of the limits alone. The first limit of a rule shows that its client is banned."""
    shown = [decision for decision in decisions if not decision.hit[0].is_ban]
    for decision in decisions:
        if decision.hit[0].is_ban and not (decision.remaining or decision.unavailable):
            _show_ban(shown, cast("BanLimit", decision.hit[0]), decision)
    return shown


def _show_ban(shown: list[Decision], limit: BanLimit, decision: Decision) -> None:
    rejecting = [each for each in shown if not each.allowed and each.hit[0].rule == limit.rule]
    if decision.allowed and rejecting:  # they have started the ban
        for each in rejecting:
            each.reset_us = max(each.reset_us, each.retry_us or 0)
        return
    hit = (limit.shown, limit.shown_key(decision.hit[1]), decision.hit[2])
    place = next((i for i, each in enumerate(shown) if each.hit[1] == hit[1]), len(shown))
    left = decision.reset_us - limit.quiet
    replaced = shown[place : place + 1]
    waits = [left, *(each.retry_us for each in replaced if not each.allowed)]
    retry = 0 if decision.allowed else None if None in waits else max(filter(None, waits), default=0)
    banned = Banned(decision.allowed, 0, retry, max(left, *(each.reset_us for each in replaced), 0), decision.at_us)
    banned.hit = hit
    shown[place : place + 1] = [banned]
