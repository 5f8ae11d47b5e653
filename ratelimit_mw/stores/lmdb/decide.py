"""The work of a call within its transaction: decisions and corrections.

``at`` is the time that the caller gave, in microseconds. With None the store's own time, ``records.now``, decides.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from ...clock import SECOND
from ...decision import Decision, Hit, decide_all, reject_uncounted
from ...errors import StateError, StoreError
from ...receipt import Correction
from .records import FULL, Records

_DAY: Final = 86_400 * SECOND
_DAMAGE: Final = (ValueError, IndexError, ArithmeticError, struct.error)
"""The errors that a damaged record causes."""


def decide(records: Records, hits: Sequence[Hit], at: int | None, consume: bool) -> list[Decision]:
    try:
        if len(hits) == 1:
            return _decide_one(records, hits[0], at, consume)
        return _decide_all(records, hits, at, consume)
    except _DAMAGE as error:
        raise _state_error(records, hits, error) from error


def _decide_all(records: Records, hits: Sequence[Hit], at: int | None, consume: bool) -> list[Decision]:
    instant = records.now if at is None else at
    stored = [records.find(limit, key) for limit, key, _ in hits]
    states = [state for _, _, state in stored]
    if records.room == FULL:
        return _reject(hits, states, instant)
    decisions, writes = decide_all(hits, states, instant)
    if consume and writes:
        new_states = {id(hit): state for hit, state in writes}
        for hit, record, decision in zip(hits, stored, decisions, strict=True):
            if id(hit) in new_states:
                records.keep(hit[0], hit[1], record, new_states[id(hit)], _span(decision, at))
    return decisions


def _decide_one(records: Records, hit: Hit, at: int | None, consume: bool) -> list[Decision]:
    """Decide a single hit, which needs no agreement with others. A tenth faster than ``decide``."""
    limit, key, cost = hit
    stored = records.find(limit, key)
    instant = records.now if at is None else at
    if records.room == FULL:
        return _reject([hit], [stored[2]], instant)
    state, decision = limit.decide(stored[2], instant, cost)
    decision.hit = hit
    if consume and state is not stored[2]:
        records.keep(limit, key, stored, state, _span(decision, at))
    return [decision]


def correct(records: Records, changes: Sequence[Correction], at: int | None) -> list[int]:
    if records.room == FULL:
        raise StoreError("no room is left, so a correction was lost")
    instant = records.now if at is None else at
    for change in changes:
        limit, key = change.limit, change.key
        try:
            stored = records.find(limit, key)
            new = change.apply_to(stored[2], instant)
            if new is not stored[2]:
                records.keep(limit, key, stored, new, _span(limit.decide(new, instant, 0)[1], at))
        except _DAMAGE as error:
            raise _state_error(records, [Hit(limit, key, 0)], error) from error
    return [instant] * len(changes)


def _state_error(records: Records, hits: Sequence[Hit], error: Exception) -> StateError:
    """Name the keys that cannot be decided. A long log is read in parts, even while it is decided."""
    unreadable = []
    for limit, key, cost in hits:
        try:
            limit.decide(records.find(limit, key)[2], records.now, cost)
        except _DAMAGE:
            unreadable.append(key)
    return StateError(f"LMDB: a damaged record: {type(error).__name__}: {error}", unreadable)


def _span(decision: Decision, at: int | None) -> int:
    """Return the microseconds to keep a state. A time given by the caller does not show when a state expires."""
    return decision.reset_us if at is None else max(decision.reset_us, _DAY)


def _reject(hits: Sequence[Hit], states: Sequence[Any], at: int) -> list[Decision]:
    """Return the decisions on hits that there is no room to count."""
    decisions = []
    for hit, state in zip(hits, states, strict=True):
        decision = hit.limit.decide(state, at, hit.cost if hit.limit.is_ban else 0)[1]
        decision.hit = hit
        decisions.append(decision)
    reject_uncounted(decisions, SECOND, knows_rest=True)
    return decisions
