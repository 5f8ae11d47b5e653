"""Requests that one call cannot answer: algorithms without a twin in Lua, and keys in several slots of a cluster.

A flow is a generator: it yields what to ask and is sent the answer, so blocking and awaitable stores run the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from ...algorithms.limit import Limit
from ...decision import Charge, Correction, Decision, Hit
from ...errors import StoreError
from .message import Changes, ConflictError, Hits, Known, Message, Request, least
from .script import GIVEN

__all__ = ["Flow", "Tools", "applied", "corrected"]

T = TypeVar("T")
Flow = Generator[Request, Any, T]

_HIT: Final = 1
_READ: Final = 6
_SHORT: Final = 1000  # microseconds until who lost every race may try again
_LARGEST: Final = 1 << 53


class Tools(NamedTuple):
    """What a flow needs to know of its store."""

    known: Known
    place: Callable[[str], int]
    """The slot of a key; all the same where there are none."""
    in_time: Callable[[], bool]


def applied(hits: Sequence[Hit], now: int | None, consume: bool, tools: Tools) -> Flow[list[Decision]]:
    """All hits: at once where they are together, else group by group in their order.

    When a group rejects, what the groups before it were charged is given back: never more than a limit is admitted,
    at worst somebody else is rejected for a moment.
    """
    groups = _grouped([hit.key for hit in hits], tools)
    parts = [[hits[i] for i in group] for group in groups]
    found: list[Decision | None] = [None] * len(hits)
    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        try:
            decisions = yield from _together(part, now, consume, tools)
        except StoreError:
            if consume:
                yield from _undone(parts[:number], found, groups, now, tools)
            raise
        for i, decision in zip(group, decisions, strict=True):
            found[i] = decision
        if _rejects(decisions) and len(groups) > 1:
            if consume:
                yield from _undone(parts[:number], found, groups, now, tools)
            yield from _looked(number, parts, found, groups, now, consume, tools)
            break
    return [decision for decision in found if decision is not None]


def _undone(
    parts: Sequence[list[Hit]], found: Sequence[Decision | None], groups: list[list[int]], now: int | None, tools: Tools
) -> Flow[None]:
    for group, part in zip(groups, parts, strict=False):
        changes = []
        for i, (limit, key, cost) in zip(group, part, strict=True):
            decision = found[i]
            if decision is not None and decision.allowed and cost:
                changes.append(Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us)))
        yield from corrected(changes, now, tools)


def _looked(
    rejecting: int,
    parts: Sequence[list[Hit]],
    found: list[Decision | None],
    groups: list[list[int]],
    now: int | None,
    consume: bool,
    tools: Tools,
) -> Flow[None]:
    """What would have passed reports a look, and what would not have is rejected as well."""
    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        if number == rejecting:
            continue
        if number > rejecting:
            decisions = yield from _together(part, now, consume, tools, rejected=True)
        else:  # what was charged here has been given back
            decisions = yield from _together([hit._replace(cost=0) for hit in part], now, False, tools)
        for i, decision in zip(group, decisions, strict=True):
            before = found[i]
            if before is None or before.allowed:
                found[i] = decision


def _rejects(decisions: Sequence[Decision]) -> bool:
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


def _together(
    hits: Sequence[Hit], now: int | None, consume: bool, tools: Tools, rejected: bool = False
) -> Flow[list[Decision]]:
    """Hits whose keys are in one place."""
    own = [hit for hit in hits if tools.known[hit.limit] is None]
    if not own:
        return cast(list[Decision], (yield Hits(hits, now, consume, least(now), rejected)))
    raced_at: int | None = None
    while raced_at is None or tools.in_time():
        try:
            at, texts = yield _Read([hit.key for hit in own], now)
            plain = Hits(hits, at, consume, least(now), rejected)
            request = _Agreed(plain, dict(zip(own, texts, strict=True)), at, tools.known)
            return cast(list[Decision], (yield request))
        except ConflictError:
            raced_at = at
        except StoreError:
            if raced_at is None:
                raise
            break  # it answered while there was time: a race was lost, not a store
    return [_lost(hit, raced_at) for hit in hits]


def _lost(hit: Hit, at: int) -> Decision:
    """Who loses every race within the time budget is rejected, and may try again at once."""
    decision = Decision(False, 0, _SHORT, _SHORT, at)
    decision.hit = hit
    return decision


def corrected(changes: Sequence[Correction], now: int | None, tools: Tools) -> Flow[list[int]]:
    """Corrections: those of a place at once, those of algorithms without a twin one by one."""
    times = [0] * len(changes)
    twins = [i for i, change in enumerate(changes) if tools.known[change.limit] is not None]
    for group in _grouped([changes[i].key for i in twins], tools):
        places = [twins[i] for i in group]
        found = yield Changes([changes[i] for i in places], now, least(now))
        for i, at in zip(places, found, strict=True):
            times[i] = at
    for i in sorted(set(range(len(changes))) - set(twins)):
        times[i] = yield from _corrected_here(changes[i], now, tools)
    return times


def _corrected_here(change: Correction, now: int | None, tools: Tools) -> Flow[int]:
    limit, key, cost, consumed = change
    raced = False
    while not raced or tools.in_time():
        try:
            at, (text,) = yield _Read([key], now)
            state = None if text is None else limit.algorithm.load(text)
            if consumed is None:
                kept = limit.algorithm.charge(state, at, cost)
            else:
                kept = limit.algorithm.give_back(state, at, consumed, cost)
            if kept is not state:
                lasts = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
                yield _Swap(limit, key, text, kept, lasts, at, least(now))
            return int(at)
        except ConflictError:
            raced = True
        except StoreError:
            if not raced:
                raise
            break
    raise StoreError("Redis: others were always faster, a correction was not made")


def _grouped(keys: Sequence[str], tools: Tools) -> list[list[int]]:
    """The positions of the keys of each place."""
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(tools.place(key), []).append(i)
    return list(groups.values())


class _Read:
    """The texts of states, with the time."""

    def __init__(self, keys: Sequence[str], now: int | None) -> None:
        self._keys = keys
        self._now = now
        self.key = keys[0]
        self.size = len(keys)

    def join(self, message: Message) -> None:
        message.asked += (_READ, self._now, 0, self.size)
        message.keys += map(message.name, self._keys)
        message.add(_given(None, None, 0, True, False, False), GIVEN)

    def read(self, reply: Sequence[Any], start: int) -> tuple[int, list[bytes | None]]:
        return reply[start - 1], list(reply[start : start + self.size])


class _Swap:
    """One state put in the place of another, if that is still there; the time."""

    size: Final = 5

    def __init__(
        self, limit: Limit, key: str, expected: bytes | None, kept: Any, lasts: int, at: int, least_ms: int
    ) -> None:
        text = None if kept is None else limit.algorithm.dump(kept)
        self._given = _given(expected, text, lasts, True, False, True)
        self.key = key
        self._at = at
        self._least = least_ms

    def join(self, message: Message) -> None:
        message.asked += (_HIT, self._at, self._least, 1, message.add(self._given, GIVEN), 1)
        message.keys.append(message.name(self.key))

    def read(self, reply: Sequence[Any], start: int) -> int:
        return self._at


class _Agreed:
    """Hits some of which were decided here, by the states that were read; the server decides the rest."""

    def __init__(self, plain: Hits, texts: dict[Hit, bytes | None], at: int, known: Known) -> None:
        self._plain = plain
        self.key = plain.key
        self.size = plain.size
        self._own: dict[int, tuple[dict[str, Any], Decision, Decision]] = {}
        for i, hit in enumerate(plain.hits):
            if known[hit.limit] is None:
                self._own[i] = _decided(hit, texts[hit], at)

    def join(self, message: Message) -> None:
        hits, plain = self._plain.hits, self._plain
        message.asked += (plain.what, plain.now, plain.least, len(hits))
        for i, (limit, key, cost) in enumerate(hits):
            if i in self._own:
                number = message.add(self._own[i][0], GIVEN)
            else:
                number = message.numbers.get(limit) or message.number(limit)
            message.asked += (number, cost)
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[Decision]:
        decisions = self._plain.read(reply, start)
        for i, (_, decision, _) in self._own.items():
            decisions[i] = decision
        if self._plain.rejected or _rejects(decisions):
            for i, (_, decision, look) in self._own.items():
                decisions[i] = look if decision.allowed else decision
        return decisions


def _decided(hit: Hit, text: bytes | None, at: int) -> tuple[dict[str, Any], Decision, Decision]:
    """What to keep of a hit, its decision, and what a look would show."""
    limit, _, cost = hit
    state = None if text is None else limit.algorithm.load(text)
    kept, decision = limit.decide(state, at, cost)
    look = limit.decide(state, at, 0)[1]
    decision.hit = look.hit = hit
    changes = kept is not state
    after = limit.algorithm.dump(kept) if changes and kept is not None else None
    return _given(text, after, decision.reset_us, decision.allowed, limit.shadow, changes), decision, look


def _given(
    expected: bytes | None, kept: bytes | None, lasts: int, allowed: bool, shadow: bool, changes: bool
) -> dict[str, Any]:
    """What given.lua needs to know."""
    given = {"kind": GIVEN.name, "lasts": min(lasts, _LARGEST), "allowed": allowed, "shadow": shadow}
    return {**given, "changes": changes, "expected": _text(expected), "kept": _text(kept)}


def _text(data: bytes | None) -> msgspec.Raw | None:
    """Any bytes as a text of msgpack's, the one kind of bytes that the server's reader knows."""
    return None if data is None else msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)
