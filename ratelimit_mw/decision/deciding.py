"""Decide all hits of a request at one instant, and build the verdict of their decisions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bans import BanLimit, banned_rules, count_rejections, show_bans
from .limit import BeforeHit, Decision, Hit, Limit, build_denial
from .receipt import Receipt
from .verdict import Verdict


def decide_all(hits: Sequence[Hit], states: Sequence[Any], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
    """Decide all hits of a request at one instant. Pure. A store calls it within one atomic step.

    When a limit rejects the request, the other limits report their state for a cost of 0, and only rejections that a
    log or a ban counts are written. A shadow limit never rejects the request. A ban rejects its rule.

    Args:
        hits: The hits of the request.
        states: The state of each hit, None for a key without one.
        now: The time in whole microseconds.

    Returns:
        The decisions, one for each hit, and the pairs of hit and new state to write when the request consumes.
    """
    is_settled = True
    decisions: list[Decision] = []
    writes: list[tuple[Hit, Any]] = []
    for hit, state in zip(hits, states, strict=True):
        limit, _, cost = hit
        kept, decision = limit.decide(state, now, cost)
        decision.hit = hit
        decisions.append(decision)
        if kept is not state:
            writes.append((hit, kept))
        if not decision.allowed:
            is_settled = False
    return decisions, writes if is_settled else withdraw(hits, states, now, decisions, writes)


def withdraw(
    hits: Sequence[Hit], states: Sequence[Any], now: int, decisions: list[Decision], writes: list[tuple[Hit, Any]]
) -> list[tuple[Hit, Any]]:
    """Replace the decisions on hits that must not consume by those for a cost of 0. Return the writes that remain.

    They are the hits of a rejected request, and of a rule from which the client is banned.
    """
    rejecting = [decision.hit[0] for decision in decisions if not decision.allowed]
    if not rejecting:
        return writes
    allowed = all(limit.shadow for limit in rejecting)
    has_ban = any(limit.ban is not None or isinstance(limit, BanLimit) for limit in rejecting)
    banned = banned_rules(decisions) if has_ban else ()
    looking = set()
    for i, (hit, state) in enumerate(zip(hits, states, strict=True)):
        if decisions[i].allowed and (not allowed or hit[0].rule in banned):
            looking.add(id(hit))
            decisions[i] = hit[0].decide(state, now, 0)[1]
            decisions[i].hit = hit
    writes = [(hit, kept) for hit, kept in writes if id(hit) not in looking]
    if has_ban:
        count_rejections(hits, states, now, decisions, writes)
    return writes


def build_verdict(decisions: Sequence[Decision], consumed: bool = True, has_added: bool = False) -> Verdict:
    """Build the verdict of these decisions. A peek (``consumed`` False) has nothing to refund.

    With ``has_added``, hits were added for the store. The decisions of each ``BeforeHit`` go into the receipt. Those of
    bans are shown by the limits.
    """
    before: dict[Limit, Decision] = {}
    allowed = True
    if has_added:
        before = {d.source: d for d in decisions if isinstance(d.hit, BeforeHit)}
        own = [d for d in decisions if not isinstance(d.hit, BeforeHit)]
        allowed = all(d.allowed or d.hit[0].shadow for d in own)  # including those that are not shown
        decisions = show_bans(own)
    for decision in decisions:
        if not decision.allowed and not decision.hit[0].shadow:
            allowed = False
    if before or not consumed:
        return Verdict(decisions, allowed, Receipt(decisions, allowed and consumed, before))
    return Verdict(decisions, allowed)


def reject_missing(limits: Sequence[Limit], now: int) -> Verdict:
    """Reject a request that lacks a key of these limits. Waiting does not help."""
    return Verdict([Decision(False, 0, None, 0, now, 0, (limit, "", 0)) for limit in limits], False)


def reject_unavailable(limits: Sequence[Limit], now: int) -> Verdict:
    """Reject a request whose limits are not known, because their function has failed."""
    return Verdict([build_denial((limit, "", 0), now) for limit in limits], False)
