"""Requests that need several calls: algorithms without Lua, and keys in several slots of a cluster.

Each function is a generator that yields operations and is sent their results, so blocking and async calls share it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from ...decision import Decision, Hit
from ...errors import StoreError
from ...receipt import Charge, Correction
from .message import (
    FORGET,
    READ,
    ConflictError,
    CorrectOperation,
    HitOperation,
    KeyOperation,
    Message,
    Operation,
    PackedLimits,
    min_ttl_ms,
)
from .script import GIVEN

T = TypeVar("T")
Steps = Generator[Operation, Any, T]

_HIT: Final = 1
_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_LONGEST_US: Final = 1 << 53


class RedisContext(NamedTuple):
    """The parts of a store that its steps need."""

    packed: PackedLimits
    slot: Callable[[str], int]
    """The slot of a key, or 0 without a cluster."""
    has_time: Callable[[], bool]


class Group(NamedTuple):
    """The hits of a request whose keys are in one slot, with their positions in the request."""

    positions: list[int]
    hits: list[Hit]


def apply_in_steps(hits: Sequence[Hit], now: int | None, consume: bool, context: RedisContext) -> Steps[list[Decision]]:
    """Decide all hits: in one operation if one slot has their keys, else slot by slot.

    When a slot rejects, the steps refund the earlier slots. No limit admits more than it may; another
    request can be rejected in between.
    """
    groups = [Group(group, [hits[i] for i in group]) for group in _by_slot([hit.key for hit in hits], context)]
    decisions: dict[int, Decision] = {}
    for number, group in enumerate(groups):
        try:
            group_decisions = yield from _apply_group(group.hits, now, consume, context)
        except StoreError:
            if consume:
                yield from _give_back(groups[:number], decisions, now, context)
            raise
        decisions.update(zip(group.positions, group_decisions, strict=True))
        if _rejects(group_decisions) and len(groups) > 1:
            if consume:
                yield from _give_back(groups[:number], decisions, now, context)
            yield from _report_rejected(groups, number, decisions, now, consume, context)
            break
    return [decisions[i] for i in range(len(hits))]


def _give_back(
    groups: Sequence[Group], decisions: dict[int, Decision], now: int | None, context: RedisContext
) -> Steps[None]:
    for positions, hits in groups:
        changes = []
        for (limit, key, cost), decision in zip(hits, [decisions[i] for i in positions], strict=True):
            if decision.allowed and cost:
                changes.append(Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us)))
        yield from correct_in_steps(changes, now, context)


def _report_rejected(
    groups: Sequence[Group],
    rejecting: int,
    decisions: dict[int, Decision],
    now: int | None,
    consume: bool,
    context: RedisContext,
) -> Steps[None]:
    """Replace the decisions of allowed hits by a peek: the request is rejected and consumes nothing."""
    for number, (positions, hits) in enumerate(groups):
        if number == rejecting:
            continue
        if number > rejecting:
            peeks = yield from _apply_group(hits, now, consume, context, is_rejected=True)
        else:
            peeks = yield from _apply_group([hit._replace(cost=0) for hit in hits], now, False, context)
        for i, decision in zip(positions, peeks, strict=True):
            if i not in decisions or decisions[i].allowed:
                decisions[i] = decision


def _rejects(decisions: Iterable[Decision]) -> bool:
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


def _apply_group(
    hits: Sequence[Hit], now: int | None, consume: bool, context: RedisContext, is_rejected: bool = False
) -> Steps[list[Decision]]:
    """Decide hits whose keys are in one slot. Algorithms without Lua read, decide here, and write what is unchanged."""
    without_lua = [hit for hit in hits if context.packed[hit.limit] is None]
    if not without_lua:
        return list((yield HitOperation(hits, now, consume, is_rejected)))
    lost_at: int | None = None
    while lost_at is None or context.has_time():
        try:
            at, texts = yield KeyOperation(READ, [hit.key for hit in without_lua], now)
            plain = HitOperation(hits, at, consume, is_rejected)
            plain.ttl_ms = min_ttl_ms(now)
            return list(
                (yield MixedHitOperation(plain, dict(zip(without_lua, texts, strict=True)), at, context.packed))
            )
        except ConflictError:
            lost_at = at
        except StoreError:
            if lost_at is None:
                raise
            break  # the server did answer: the request lost a race
    return [_lose(hit, lost_at) for hit in hits]


def _lose(hit: Hit, at: int) -> Decision:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decision = Decision(False, 0, _SHORT_US, _SHORT_US, at)
    decision.hit = hit
    return decision


def correct_in_steps(changes: Sequence[Correction], now: int | None, context: RedisContext) -> Steps[list[int]]:
    """Correct: one operation for each slot, and one for each change of an algorithm without Lua."""
    times = [0] * len(changes)
    with_lua = [i for i, change in enumerate(changes) if context.packed[change.limit] is not None]
    for group in _by_slot([changes[i].key for i in with_lua], context):
        positions = [with_lua[i] for i in group]
        for i, at in zip(positions, (yield CorrectOperation([changes[i] for i in positions], now)), strict=True):
            times[i] = at
    for i in sorted(set(range(len(changes))) - set(with_lua)):
        times[i] = yield from _correct_here(changes[i], now, context)
    return times


def _correct_here(change: Correction, now: int | None, context: RedisContext) -> Steps[int]:
    limit, key, cost, charge = change
    algorithm, has_lost = limit.algorithm, False
    while not has_lost or context.has_time():
        try:
            at, (text,) = yield KeyOperation(READ, [key], now)
            state = None if text is None else algorithm.load(text)
            kept = algorithm.charge(state, at, cost) if charge is None else algorithm.refund(state, at, charge, cost)
            if kept is not state:
                lasts = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
                dumped = None if kept is None else algorithm.dump(kept)
                yield SwapOperation(key, _given(text, dumped, lasts, True, False, True), at, min_ttl_ms(now))
            return int(at)
        except ConflictError:
            has_lost = True
        except StoreError:
            if not has_lost:
                raise
            break
    raise StoreError("Redis: other processes were always faster, so a correction was not made")


def forget_in_steps(keys: Sequence[str], context: RedisContext) -> Steps[None]:
    """Delete keys: one operation for each slot."""
    for group in _by_slot(keys, context):
        yield KeyOperation(FORGET, [keys[i] for i in group])


def _by_slot(keys: Sequence[str], context: RedisContext) -> list[list[int]]:
    """The positions of the keys of each slot."""
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(context.slot(key), []).append(i)
    return list(groups.values())


class SwapOperation:
    """Replace one state by another, if it is unchanged."""

    size: Final = 5

    def __init__(self, key: str, given: dict[str, Any], at: int, ttl_ms: int) -> None:
        self.key = key
        self._given = given
        self._at = at
        self._ttl_ms = ttl_ms

    def join(self, message: Message) -> None:
        message.numbers_sent += (_HIT, self._at, self._ttl_ms, 1, message.add(self._given, GIVEN), 1)
        message.keys.append(message.name(self.key))

    def read(self, reply: Sequence[Any], start: int) -> int:
        return self._at


class MixedHitOperation:
    """Hits of which some are decided here, by the states that were read. The server decides the others."""

    def __init__(self, plain: HitOperation, texts: dict[Hit, bytes | None], at: int, packed: PackedLimits) -> None:
        self._plain = plain
        self.key = plain.key
        self.size = plain.size
        self._own = {i: _decide(hit, texts[hit], at) for i, hit in enumerate(plain.hits) if packed[hit.limit] is None}

    def join(self, message: Message) -> None:
        hits, plain = self._plain.hits, self._plain
        message.numbers_sent += (plain.kind, plain.now, plain.ttl_ms, len(hits))
        for i, (limit, key, cost) in enumerate(hits):
            if i in self._own:
                number = message.add(self._own[i][0], GIVEN)
            else:
                number = message.numbers.get(limit) or message.number(limit)
            message.numbers_sent += (number, cost)
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[Decision]:
        decisions = self._plain.read(reply, start)
        for i, (_, decision, _) in self._own.items():
            decisions[i] = decision
        if self._plain.is_rejected or _rejects(decisions):
            for i, (_, decision, peek) in self._own.items():
                decisions[i] = peek if decision.allowed else decision
        return decisions


def _decide(hit: Hit, text: bytes | None, at: int) -> tuple[dict[str, Any], Decision, Decision]:
    """The arguments for given.lua, the decision of a hit, and the decision of a peek."""
    limit, _, cost = hit
    state = None if text is None else limit.algorithm.load(text)
    kept, decision = limit.decide(state, at, cost)
    peek = limit.decide(state, at, 0)[1]
    decision.hit = peek.hit = hit
    changes = kept is not state
    dumped = limit.algorithm.dump(kept) if changes and kept is not None else None
    return _given(text, dumped, decision.reset_us, decision.allowed, limit.shadow, changes), decision, peek


def _given(
    expected: bytes | None, kept: bytes | None, lasts: int, allowed: bool, shadow: bool, changes: bool
) -> dict[str, Any]:
    """The arguments for given.lua."""
    given = {"kind": GIVEN.name, "lasts": min(lasts, _LONGEST_US), "allowed": allowed, "shadow": shadow}
    return {**given, "changes": changes, "expected": _text(expected), "kept": _text(kept)}


def _text(data: bytes | None) -> msgspec.Raw | None:
    """Bytes as a msgpack string, the only kind of bytes that Redis can unpack."""
    return None if data is None else msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)
