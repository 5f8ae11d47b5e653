"""Requests that need several calls: algorithms without Lua, and keys in several slots of a cluster."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from ...algorithms.limit import Limit
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
from .script import SWAP

T = TypeVar("T")

_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_LONGEST_US: Final = 1 << 53

Group = dict[int, Any]
"""The items whose keys are in one slot, by their position in the request."""


class RedisContext(NamedTuple):
    """The parts of a store that the steps of one request need."""

    packed: PackedLimits
    slot: Callable[[str], int]
    """The slot of a key, or 0 without a cluster."""
    ask: Callable[[Operation], Awaitable[Any]]
    has_time: Callable[[], bool]

    def by_slot(self, items: Sequence[Any], key: Callable[[Any], str]) -> list[Group]:
        groups: dict[int, Group] = {}
        for i, item in enumerate(items):
            groups.setdefault(self.slot(key(item)), {})[i] = item
        return list(groups.values())


async def apply_in_steps(hits: Sequence[Hit], now: int | None, consume: bool, context: RedisContext) -> list[Decision]:
    """Decide all hits: in one operation if one slot has their keys, else slot by slot.

    When a slot rejects, the steps refund the earlier slots. No limit admits more than it may; another
    request can be rejected in between.
    """
    groups = context.by_slot(hits, lambda hit: hit.key)
    decisions: dict[int, Decision] = {}
    for number, group in enumerate(groups):
        try:
            found = await _apply_group([*group.values()], now, consume, context)
        except StoreError:
            if consume:
                await _refund(groups[:number], decisions, now, context)
            raise
        decisions.update(zip(group, found, strict=True))
        if _rejects(found) and len(groups) > 1:
            if consume:
                await _refund(groups[:number], decisions, now, context)
            await _report_rejected(groups, number, decisions, now, consume, context)
            break
    return [decisions[i] for i in range(len(hits))]


async def _refund(
    groups: Sequence[Group], decisions: dict[int, Decision], now: int | None, context: RedisContext
) -> None:
    changes = []
    for i, (limit, key, cost) in (item for group in groups for item in group.items()):
        if cost and (decision := decisions[i]).allowed:
            changes.append(Correction(limit, key, cost, Charge(decision.at_us, cost, decision.delay_us)))
    await correct_in_steps(changes, now, context)


async def _report_rejected(
    groups: Sequence[Group],
    rejecting: int,
    decisions: dict[int, Decision],
    now: int | None,
    consume: bool,
    context: RedisContext,
) -> None:
    """Replace the decisions of allowed hits by a peek: the request is rejected and consumes nothing."""
    for number, group in enumerate(groups):
        hits = [*group.values()]
        if number == rejecting:
            continue
        if number > rejecting:
            peeks = await _apply_group(hits, now, consume, context, is_rejected=True)
        else:
            peeks = await _apply_group([hit._replace(cost=0) for hit in hits], now, False, context)
        for i, decision in zip(group, peeks, strict=True):
            if i not in decisions or decisions[i].allowed:
                decisions[i] = decision


def _rejects(decisions: Iterable[Decision]) -> bool:
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


async def _apply_group(
    hits: Sequence[Hit], now: int | None, consume: bool, context: RedisContext, is_rejected: bool = False
) -> list[Decision]:
    """Decide hits whose keys are in one slot. Algorithms without Lua read, decide here, and write what is unchanged."""
    without_lua = [i for i, hit in enumerate(hits) if context.packed[hit.limit] is None]
    if not without_lua:
        return list(await context.ask(HitOperation(hits, now, consume, is_rejected)))

    at = 0

    async def attempt() -> list[Decision]:
        nonlocal at
        at, texts = await context.ask(KeyOperation(READ, [hits[i].key for i in without_lua], now))
        swaps = {i: _decide(hits[i], text, at) for i, text in zip(without_lua, texts, strict=True)}
        return list(await context.ask(MixedHitOperation(hits, now, at, consume, is_rejected, swaps)))

    decisions = await _retry(attempt, context)
    return [_lose(hit, at) for hit in hits] if decisions is None else decisions


async def _retry(attempt: Callable[[], Awaitable[T]], context: RedisContext) -> T | None:
    """Attempt until no other process comes between. None when the time budget ends before."""
    has_lost = False
    while not has_lost or context.has_time():
        try:
            return await attempt()
        except ConflictError:
            has_lost = True
        except StoreError:
            if not has_lost:
                raise
            break  # the server did answer: the request lost a race
    return None


def _lose(hit: Hit, at: int) -> Decision:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decision = Decision(False, 0, _SHORT_US, _SHORT_US, at)
    decision.hit = hit
    return decision


async def correct_in_steps(changes: Sequence[Correction], now: int | None, context: RedisContext) -> list[int]:
    """Correct: one operation for each slot, and one for each change of an algorithm without Lua."""
    times = [0] * len(changes)
    with_lua = [(i, change) for i, change in enumerate(changes) if context.packed[change.limit] is not None]
    for group in context.by_slot(with_lua, lambda item: item[1].key):
        positions, corrections = zip(*group.values(), strict=True)
        found = await context.ask(CorrectOperation(corrections, now))
        for i, at in zip(positions, found, strict=True):
            times[i] = at
    for i, change in enumerate(changes):
        if context.packed[change.limit] is None:
            times[i] = await _correct_here(change, now, context)
    return times


async def _correct_here(change: Correction, now: int | None, context: RedisContext) -> int:
    limit, key, cost, charge = change
    algorithm = limit.algorithm

    async def attempt() -> int:
        at, (text,) = await context.ask(KeyOperation(READ, [key], now))
        state = None if text is None else algorithm.load(text)
        kept = algorithm.charge(state, at, cost) if charge is None else algorithm.refund(state, at, charge, cost)
        if kept is not state:
            reset = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
            corrected = Decision(True, 0, 0, reset, at)
            swap = Swap(_pack_swap(limit, text, kept, corrected), corrected, corrected)
            await context.ask(MixedHitOperation([Hit(limit, key, 1)], now, at, True, False, {0: swap}))
        return int(at)

    if (at := await _retry(attempt, context)) is None:
        raise StoreError("Redis: other processes were always faster, so a correction was not made")
    return at


async def forget_in_steps(keys: Sequence[str], context: RedisContext) -> None:
    """Delete keys: one operation for each slot."""
    for group in context.by_slot(keys, str):
        await context.ask(KeyOperation(FORGET, list(group.values())))


class Swap(NamedTuple):
    """A hit decided here: the arguments for swap.lua, the decision, and the decision of a peek."""

    packed: dict[str, Any]
    decision: Decision
    peek: Decision


class MixedHitOperation(HitOperation):
    """Hits of which some are decided here, by the states that were read at ``at``. The server decides the others."""

    def __init__(
        self, hits: Sequence[Hit], now: int | None, at: int, consume: bool, is_rejected: bool, swaps: dict[int, Swap]
    ) -> None:
        super().__init__(hits, at, consume, is_rejected)
        self.ttl_ms = min_ttl_ms(now)
        self._swaps = swaps

    def join(self, message: Message) -> None:
        message.numbers_sent += (self.kind, self.now, self.ttl_ms, len(self.hits))
        for i, (limit, key, cost) in enumerate(self.hits):
            if swap := self._swaps.get(i):
                number = message.add(swap.packed, SWAP)
            else:
                number = message.numbers.get(limit) or message.number(limit)
            message.numbers_sent += (number, cost)
            message.keys.append(message.name(key))

    def read(self, reply: Sequence[Any], start: int) -> list[Decision]:
        decisions = super().read(reply, start)
        for i, swap in self._swaps.items():
            decisions[i] = swap.decision
        if self.is_rejected or _rejects(decisions):
            for i, swap in self._swaps.items():
                decisions[i] = swap.peek if swap.decision.allowed else swap.decision
        return decisions


def _decide(hit: Hit, text: bytes | None, at: int) -> Swap:
    limit, _, cost = hit
    state = None if text is None else limit.algorithm.load(text)
    kept, decision = limit.decide(state, at, cost)
    peek = limit.decide(state, at, 0)[1]
    decision.hit = peek.hit = hit
    packed = _pack_swap(limit, text, kept, decision)
    return Swap({**packed, "kept": False} if kept is state else packed, decision, peek)


def _pack_swap(limit: Limit, expected: bytes | None, kept: Any, decision: Decision) -> dict[str, Any]:
    """The arguments for swap.lua. ``kept`` may be False there, to leave the state as it is."""
    return {
        "kind": SWAP.name,
        "lasts": min(decision.reset_us, _LONGEST_US),
        "allowed": decision.allowed,
        "shadow": limit.shadow,
        "expected": _pack_text(expected),
        "kept": None if kept is None else _pack_text(limit.algorithm.dump(kept)),
    }


def _pack_text(data: bytes | None) -> msgspec.Raw | None:
    """Bytes as a msgpack string, the only kind of bytes that Redis can unpack."""
    return None if data is None else msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)
