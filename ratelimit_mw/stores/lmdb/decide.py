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
from .records import Records

_DAY: Final = 86_400 * SECOND
_DAMAGE: Final = (ValueError, IndexError, ArithmeticError, struct.error)
"""The errors that a damaged record causes."""


def decide(records: Records, hits: Sequence[Hit], at: int | None, consume: bool) -> list[Decision]:
    instant = records.now if at is None else at
    names, states = [], []
    try:
        for limit, key, _ in hits:
            name, state = records.find(limit, key)
            names.append(name)
            states.append(state)
    except _DAMAGE as error:
        raise _damaged(error, [key]) from error
    try:
        decisions, writes = decide_all(hits, states, instant)
    except _DAMAGE as error:
        raise _state_error(hits, states, instant, error) from error
    for hit, state in writes if consume else ():
        i = 0 if hit is hits[0] else [id(each) for each in hits].index(id(hit))
        records.keep(hit[0], hit[1], names[i], state, _span(decisions[i], at))
    return decisions


def correct(records: Records, changes: Sequence[Correction], at: int | None) -> list[int]:
    instant = records.now if at is None else at
    for change in changes:
        limit, key = change.limit, change.key
        try:
            name, state = records.find(limit, key)
            new = change.apply_to(state, instant)
            if new is not state:
                records.keep(limit, key, name, new, _span(limit.decide(new, instant, 0)[1], at))
        except _DAMAGE as error:
            raise _damaged(error, [key]) from error
    return [instant] * len(changes)


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
