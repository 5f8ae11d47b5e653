"""Concurrent requests ("10 concurrent"): slots that are released when a request ends, or that expire.

State: (id, expiry) of each slot in turn. The ids of a hit follow each other. The first comes with the hit, else it is
the time of the hit, made unique. A refund finds the slots by their ids. They are renewed while they are held, by a
refund of 0 or by the same hit again. So the slots of a killed worker expire, and a long stream keeps its slot.
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
    """Allows a cost ``c`` when the number of live slots, plus ``c``, is at most N."""

    name = "concurrency"
    lifetime = SLOT_LIFE

    def __init__(self, quota: Quota) -> None:
        super().__init__(quota)
        if quota.amount > _MAX_SLOTS:
            raise ConfigError(f"expected at most {_MAX_SLOTS:,} concurrent requests; got {str(quota)!r}")

    def decide(self, state: State, now: int, cost: int) -> tuple[State, Decision]:
        named: int | None = getattr(cost, "slot", None)
        others = live = _live(state, now)
        if named is not None:  # perhaps the same hit again
            others = _without(live, range(named, named + min(cost, self.amount)))
        room = self.amount - len(others) // 2
        if cost == 0 or cost > room:
            # The end of a request is not known. A retry after a second costs little.
            retry = 0 if cost == 0 else None if cost > self.amount else SECOND
            return state, Decision(cost == 0, max(0, room), retry, max(live[1::2], default=now) - now, now)
        slot = named or _next_id(state, now)
        return self._take(others, slot, now, cost), Decision(
            True, room - cost, 0, self.lifetime, now if named else slot
        )

    def charge(self, state: State, now: int, cost: int) -> State:
        return self._take(_live(state, now), _next_id(state, now), now, min(cost, self.amount)) or None

    def _take(self, live: tuple[int, ...], first: int, now: int, cost: int) -> tuple[int, ...]:
        end = now + self.lifetime
        return live + tuple(number for slot in range(first, first + cost) for number in (slot, end))

    def refund(self, state: State, now: int, consumed: Charge, cost: int) -> State:
        """Release the last slots of a hit; with a cost of 0, renew all."""
        if consumed.cost > self.amount:  # no hit has taken as many
            return state
        live = _live(state, now)
        if cost:
            end = consumed.at_us + consumed.cost
            return _without(live, range(end - cost, end)) or None
        held = range(consumed.at_us, consumed.at_us + consumed.cost)
        pairs = zip(live[::2], live[1::2], strict=True)
        return tuple(n for slot, end in pairs for n in (slot, now + self.lifetime if slot in held else end)) or None


def _live(state: State, now: int) -> tuple[int, ...]:
    if state is None or min(state[1::2]) > now:
        return state or ()
    return tuple(n for slot, end in zip(state[::2], state[1::2], strict=True) if end > now for n in (slot, end))


def _without(live: tuple[int, ...], slots: range) -> tuple[int, ...]:
    return tuple(n for slot, end in zip(live[::2], live[1::2], strict=True) if slot not in slots for n in (slot, end))


def _next_id(state: State, now: int) -> int:
    return now if state is None else max(now, max(state[::2]) + 1)
