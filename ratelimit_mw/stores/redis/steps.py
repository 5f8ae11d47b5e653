"""Requests that need several calls: algorithms without Lua, and keys in several slots of a cluster."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from ...algorithms.limit import Limit
from ...decision import Decision, Hit
from ...errors import StateError, StoreError
from ...receipt import Correction
from .message import (
    FORGET,
    READ,
    Caller,
    ConflictError,
    CorrectOperation,
    HitOperation,
    KeyOperation,
    Message,
    undecodable,
)
from .script import PACKED, SWAP

_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_LONGEST_US: Final = 1 << 53

Group = dict[int, Any]
"""The items whose keys are in one slot, by their position in the request."""


class SteppedRequest:
    """A request that starts now. ``slot`` is the slot of a key, the same for all keys without a cluster."""

    def __init__(self, caller: Caller, slot: Callable[[str], int], now: int | None, timeout: float) -> None:
        self._slot = slot
        self._now = now
        self._time = caller.time
        self._deadline = caller.time() + timeout
        self._ask = partial(caller.ask, deadline=self._deadline)

    async def apply(self, hits: Sequence[Hit], consume: bool) -> list[Decision]:
        """Decide all hits: in one operation if one slot has their keys, else slot by slot.

        When a slot rejects, the request refunds the earlier slots. No limit admits more than it may; another
        request can be rejected in between.
        """
        groups = self._by_slot(hits, lambda hit: hit.key)
        decisions: dict[int, Decision] = {}
        consumed: list[Decision] = []
        for number, group in enumerate(groups):
            try:
                results = await self._apply_group([*group.values()], consume)
            except StoreError:
                await self._refund(consumed)
                raise
            decisions.update(zip(group, results, strict=True))
            if _rejects(results):
                await self._refund(consumed)
                await self._peek_others(groups, number, decisions, consume)
                break
            consumed += results if consume else []
        return [decisions[i] for i in range(len(hits))]

    async def correct(self, changes: Sequence[Correction]) -> list[int]:
        """Correct with one operation for each slot, and one for each change of an algorithm without Lua."""
        times = [0] * len(changes)
        with_lua = [(i, change) for i, change in enumerate(changes) if PACKED[change.limit] is not None]
        for group in self._by_slot(with_lua, lambda item: item[1].key):
            positions, corrections = zip(*group.values(), strict=True)
            group_times = await self._ask(CorrectOperation(corrections, self._now))
            for i, at in zip(positions, group_times, strict=True):
                times[i] = at
        for i, change in enumerate(changes):
            if PACKED[change.limit] is None:
                times[i] = await self._correct_here(change)
        return times

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete keys: one operation for each slot."""
        for group in self._by_slot(keys, str):
            await self._ask(KeyOperation(FORGET, [*group.values()]))

    def _by_slot(self, items: Sequence[Any], key: Callable[[Any], str]) -> list[Group]:
        groups: dict[int, Group] = {}
        for i, item in enumerate(items):
            groups.setdefault(self._slot(key(item)), {})[i] = item
        return list(groups.values())

    async def _refund(self, decisions: Sequence[Decision]) -> None:
        await self.correct([Correction.refund(each) for each in decisions if each.allowed and each.hit[2]])

    async def _peek_others(
        self, groups: Sequence[Group], rejecting: int, decisions: dict[int, Decision], consume: bool
    ) -> None:
        """Replace the decisions of allowed hits by a peek: the request is rejected and consumes nothing."""
        for number, group in enumerate(groups):
            is_later = number > rejecting
            hits = [hit if is_later else hit._replace(cost=0) for hit in group.values()]
            if number != rejecting:
                peeks = await self._apply_group(hits, consume and is_later, is_rejected=True)
                for i, decision in zip(group, peeks, strict=True):
                    if i not in decisions or decisions[i].allowed:
                        decisions[i] = decision

    async def _apply_group(self, hits: Sequence[Hit], consume: bool, is_rejected: bool = False) -> list[Decision]:
        """Decide hits whose keys are in one slot. Algorithms without Lua read, decide here, and swap the state."""
        without_lua = [i for i, hit in enumerate(hits) if PACKED[hit.limit] is None]
        if not without_lua:
            return list(await self._ask(HitOperation(hits, self._now, consume, is_rejected)))

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            swaps = {i: _decide(hits[i], text, at) for i, text in zip(without_lua, texts, strict=True)}
            return MixedHitOperation(hits, self._now, at, consume, is_rejected, swaps)

        at, decisions = await self._swap([hits[i].key for i in without_lua], decide)
        return [_lose(hit, at) for hit in hits] if decisions is None else decisions

    async def _correct_here(self, change: Correction) -> int:
        limit, key = change.limit, change.key

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            state = _load(limit, key, texts[0])
            kept = change.apply_to(state, at)
            reset = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
            corrected = Decision(True, 0, 0, reset, at)
            swap = Swap(_pack_swap(limit, texts[0], kept, kept is not state, corrected), corrected, corrected)
            return MixedHitOperation([Hit(limit, key, 1)], self._now, at, True, False, {0: swap})

        at, decisions = await self._swap([key], decide)
        if decisions is None:
            raise StoreError("Redis: other processes were always faster, so a correction was not made")
        return at

    async def _swap(
        self, keys: list[str], decide: Callable[[int, Sequence[bytes | None]], MixedHitOperation]
    ) -> tuple[int, list[Decision] | None]:
        """Return the time and the decisions; None when other processes changed the states until the budget ended."""
        at, has_lost = 0, False
        while not has_lost or self._time() < self._deadline:
            try:
                at, texts = await self._ask(KeyOperation(READ, keys, self._now))
                return at, await self._ask(decide(at, texts))
            except ConflictError:
                has_lost = True
            except StoreError as error:
                if not has_lost or isinstance(error, StateError):
                    raise
                break  # the server did answer: the request lost a race
        return at, None


def _rejects(decisions: Iterable[Decision]) -> bool:
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


def _lose(hit: Hit, at: int) -> Decision:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decision = Decision(False, 0, _SHORT_US, _SHORT_US, at)
    decision.hit = hit
    return decision


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
        super().__init__(hits, now, consume, is_rejected)
        self.now = at
        self._swaps = swaps
        self._is_rejected = is_rejected

    def join(self, message: Message) -> None:
        for i, (limit, key, cost) in enumerate(self.items):
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
        if self._is_rejected or _rejects(decisions):
            for i, swap in self._swaps.items():
                decisions[i] = swap.peek if swap.decision.allowed else swap.decision
        return decisions


def _decide(hit: Hit, text: bytes | None, at: int) -> Swap:
    limit, key, cost = hit
    state = _load(limit, key, text)
    kept, decision = limit.decide(state, at, cost)
    peek = limit.decide(state, at, 0)[1]
    decision.hit = peek.hit = hit
    return Swap(_pack_swap(limit, text, kept, kept is not state, decision), decision, peek)


def _load(limit: Limit, key: str, text: bytes | None) -> Any:
    try:
        return None if text is None else limit.algorithm.load(text)
    except ValueError as error:
        raise undecodable(key) from error


def _pack_swap(limit: Limit, expected: bytes | None, kept: Any, changes: bool, decision: Decision) -> dict[str, Any]:
    """Return the arguments for swap.lua, which leaves the state as it is when ``kept`` is False."""
    return {
        "kind": SWAP.name,
        "lasts": min(decision.reset_us, _LONGEST_US),
        "allowed": decision.allowed,
        "shadow": limit.shadow,
        "expected": _pack_text(expected),
        "kept": _pack_text(None if kept is None else limit.algorithm.dump(kept)) if changes else False,
    }


def _pack_text(data: bytes | None) -> msgspec.Raw | None:
    """Return bytes as a msgpack string, the only kind of bytes that Redis can unpack."""
    return None if data is None else msgspec.Raw(b"\xdb" + struct.pack(">I", len(data)) + data)
