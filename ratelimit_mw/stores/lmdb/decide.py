"""The work of a call within its transaction: decisions and corrections.

``at`` is the time that the caller gave, in microseconds. With None the store's own time, ``records.now``, decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...clock import SECOND
from ...decision import Decision, Hit, decide_all
from ...errors import StoreError
from ...receipt import Correction
from .records import NoRoomError, Records

_DAY: Final = 86_400 * SECOND
_RETRY: Final = SECOND


def decide_one(records: Records, hit: Hit, at: int | None, consume: bool) -> list[Decision]:
    """``decide`` for a single hit, which needs no agreement with others."""
    limit, key, cost = hit
    stored = records.find(limit, key)
    instant = records.now if at is None else at
    state, decision = limit.decide(stored[2], instant, cost)
    decision.hit = hit
    if state is stored[2] or not consume:
        return [decision]
    try:
        records.keep(limit, key, stored, state, _span(decision, at))
    except NoRoomError:
        records.changed = False
        return [_rejection(hit, stored[2], instant)]
    return [decision]


def decide(records: Records, hits: Sequence[Hit], at: int | None, consume: bool) -> list[Decision]:
    instant = records.now if at is None else at
    stored = [records.find(limit, key) for limit, key, _ in hits]
    decisions, writes = decide_all(hits, [state for _, _, state in stored], instant)
    if not consume or not writes:
        return decisions
    places = {id(hit): place for place, hit in enumerate(hits)}
    try:
        for hit, state in writes:
            place = places[id(hit)]
            records.keep(hit[0], hit[1], stored[place], state, _span(decisions[place], at))
    except NoRoomError:
        records.changed = False
        return [_rejection(hit, state, instant) for hit, (_, _, state) in zip(hits, stored, strict=True)]
    return decisions


def correct(records: Records, changes: Sequence[Correction], at: int | None) -> list[int]:
    instant = records.now if at is None else at
    for limit, key, cost, consumed in changes:
        stored = records.find(limit, key)
        if consumed is None:
            state = limit.algorithm.charge(stored[2], instant, cost)
        else:
            state = limit.algorithm.refund(stored[2], instant, consumed, cost)
        if state is stored[2]:
            continue
        try:
            records.keep(limit, key, stored, state, _span(limit.decide(state, instant, 0)[1], at))
        except NoRoomError as error:
            raise StoreError("no room is left, so a correction was lost") from error
    return [instant] * len(changes)


def _span(decision: Decision, at: int | None) -> int:
    """Microseconds to keep a state. A time given by the caller does not show when a state expires."""
    return decision.reset_us if at is None else max(decision.reset_us, _DAY)


def _rejection(hit: Hit, state: Any, at: int) -> Decision:
    """The decision on a hit that there is no room to count."""
    look = hit.limit.decide(state, at, 0)[1]
    decision = Decision(hit.cost == 0, look.remaining, _RETRY if hit.cost else 0, look.reset_us, look.at_us)
    decision.hit = hit
    return decision
