"""The work of a call within its transaction: decisions and corrections.

``at`` is the time that the caller gave, in microseconds. With None the store's own time, ``records.now``, decides.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from ...clock import SECOND
from ...decision import Decision, Hit, decide_all
from ...errors import StateError
from ...receipt import Correction
from .records import Records, StoredState

_DAY: Final = 86_400 * SECOND
_DAMAGE: Final = (ValueError, IndexError, ArithmeticError, struct.error)
"""The errors that a damaged record causes."""


def decide(records: Records, hits: Sequence[Hit], at: int | None, consume: bool) -> list[Decision]:
    instant = records.now if at is None else at
    stored = [_find(records, hit) for hit in hits]
    states = [state for _, state in stored]
    try:
        decisions, writes = decide_all(hits, states, instant)
    except _DAMAGE as error:
        raise _state_error(hits, states, instant, error) from error
    if consume and writes:
        new_states = {id(hit): state for hit, state in writes}
        for hit, (name, _), decision in zip(hits, stored, decisions, strict=True):
            if id(hit) in new_states:
                records.keep(hit[0], hit[1], name, new_states[id(hit)], _span(decision, at))
    return decisions


def correct(records: Records, changes: Sequence[Correction], at: int | None) -> list[int]:
    instant = records.now if at is None else at
    for change in changes:
        limit, hit = change.limit, Hit(change.limit, change.key, 0)
        name, state = _find(records, hit)
        try:
            new = change.apply_to(state, instant)
            if new is not state:
                records.keep(limit, change.key, name, new, _span(limit.decide(new, instant, 0)[1], at))
        except _DAMAGE as error:
            raise _state_error([hit], [state], instant, error) from error
    return [instant] * len(changes)


def _find(records: Records, hit: Hit) -> StoredState:
    try:
        return records.find(hit[0], hit[1])
    except _DAMAGE as error:
        raise _damaged(error, [hit[1]]) from error


def _state_error(hits: Sequence[Hit], states: Sequence[Any], now: int, error: Exception) -> StateError:
    """Name the keys whose states have the form of a state, but no possible numbers."""
    keys = []
    for (limit, key, cost), state in zip(hits, states, strict=True):
        try:
            limit.decide(state, now, cost)
        except _DAMAGE:
            keys.append(key)
    return _damaged(error, keys)


def _damaged(error: Exception, keys: list[str]) -> StateError:
    return StateError(f"LMDB: a damaged record: {type(error).__name__}: {error}", keys)


def _span(decision: Decision, at: int | None) -> int:
    """Return the microseconds to keep a state. A time given by the caller does not show when a state expires."""
    return decision.reset_us if at is None else max(decision.reset_us, _DAY)
