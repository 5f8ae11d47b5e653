"""Concurrent requests ("10 concurrent"): slots that are released when a request ends, or that expire.

State: (id, expiry, cost) of each slot in turn. The id comes with the hit, else it is the time of the hit, made unique.
A refund finds the slot by its id. A slot is renewed while it is held, by a refund of 0 or by the same hit again. So the
slots of a killed worker expire, and a long stream keeps its slot.
"""

from typing import Final

from ..clock import SECOND
from ..decision import Algorithm, Charge, Decision
from ..errors import ConfigError
from ..quota import Quota

State = tuple[int, ...] | None

SLOT_LIFE: Final = 60 * SECOND
"""The time after which a slot expires that is not renewed, in microseconds."""

_MAX_SLOTS: Final = 10_000


class Concurrency(Algorithm):
    """Allows a cost ``c`` when the cost of the live slots, plus ``c``, is at most N."""

    name = "concurrency"
    lifetime = SLOT_LIFE

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        if quota.amount > _MAX_SLOTS:
            raise ConfigError(f"expected at most {_MAX_SLOTS:,} concurrent requests; got {str(quota)!r}")

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        named: int | None = getattr(cost, "slot", None)
        live = _live(state, now)
        if named in live[::3]:
            live = _without(live, named, cost)
        room = self.amount - sum(live[2::3])
        if cost == 0 or cost > room:
            # The end of a request is not known. A retry after a second costs little.
            retry = 0 if cost == 0 else None if cost > self.amount else SECOND
            return state, Decision(cost == 0, max(0, room), retry, max(live[1::3], default=now) - now, now)
        slot = named or _next_id(state, now)
        kept = (*live, slot, now + self.lifetime, int(cost))
        return kept, Decision(True, room - cost, 0, self.lifetime, now if named else slot)

    def charge(self, state: State, now: int, cost: int) -> State:
        return (*_live(state, now), _next_id(state, now), now + self.lifetime, cost)

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        """Release the slot; with a cost of 0, renew it."""
        kept: list[int] = []
        live = _live(state, now)
        for slot, end, held in zip(live[::3], live[1::3], live[2::3], strict=True):
            if slot != consumed.at_us:
                kept += (slot, end, held)
            elif cost == 0:
                kept += (slot, now + self.lifetime, held)
            elif held > cost:
                kept += (slot, end, held - cost)
        return tuple(kept) or None


def _live(state: State, now: int) -> tuple[int, ...]:
    if state is None or min(state[1::3]) > now:
        return state or ()
    slots = zip(state[::3], state[1::3], state[2::3], strict=True)
    return tuple(number for slot in slots if slot[1] > now for number in slot)


def _without(live: tuple[int, ...], slot: int | None, cost: int) -> tuple[int, ...]:
    """Return the slots but the one of this id and cost."""
    slots = zip(live[::3], live[1::3], live[2::3], strict=True)
    return tuple(number for each in slots if (each[0], each[2]) != (slot, cost) for number in each)


def _next_id(state: State, now: int) -> int:
    return now if state is None else max(now, max(state[::3]) + 1)
