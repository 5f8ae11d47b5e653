"""Requests that need several calls: algorithms without Lua, and keys in several slots of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from ...decision import Decision, Hit
from ...errors import StateError, StoreError
from ...receipt import Correction
from .client.errors import MovingSlotError
from .key_operations import FORGET, READ, KeyOperation
from .message import Caller, ConflictError, CorrectOperation, HitOperation, Operation
from .script import PACKED
from .swap import MixedHitOperation, Swap, decide_here, load_state, pack_swap, rejects

_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_MOST_GRACE: Final = 0.01  # seconds: refunds get this time after a server was silent for the whole budget


class Group:
    """The items of a request whose keys are in one slot, with their positions in the request, and their results."""

    __slots__ = ("is_final", "items", "positions", "result", "slot")

    def __init__(self, slot: int, positions: list[int], items: list[Any]) -> None:
        self.slot = slot
        self.positions = positions
        self.items = items
        self.result: Any = None
        """The decisions of hits, or the error of their server."""
        self.is_final = False
        """Whether another group had rejected before, so that these hits have consumed nothing."""

    def on_slot(self, operation: Operation) -> Operation:
        operation.slot = self.slot
        return operation

    @property
    def is_direct(self) -> bool:
        """Whether Lua decides all hits."""
        return None not in [PACKED[hit[0]] for hit in self.items]

    @property
    def stops(self) -> bool:
        """Whether the request cannot pass."""
        return isinstance(self.result, StoreError) or rejects(self.result)

    @property
    def free(self) -> list[Hit]:
        """The hits without a cost."""
        return [hit._replace(cost=0) for hit in self.items]

    def replace_allowed(self, peeks: Any) -> None:
        """Replace the decisions on allowed hits by those of a peek, unless that failed."""
        if not isinstance(peeks, StoreError):
            self.result = [peek if one.allowed else one for one, peek in zip(self.result, peeks, strict=True)]

    def split(self) -> list[Group]:
        return [Group(self.slot, [i], [item]) for i, item in zip(self.positions, self.items, strict=True)]


class SteppedRequest:
    """A request that starts now.

    Args:
        caller: The connections.
        slot: Returns the slot of a key, the same for all keys without a cluster.
        now: The time in whole microseconds; None means the server's own time.
        timeout: The time budget in seconds.
        count_lost: Called with a number of refunds that are not made, or not known to be.
    """

    def __init__(
        self,
        caller: Caller,
        slot: Callable[[str], int],
        now: int | None,
        timeout: float,
        count_lost: Callable[[int], None],
    ) -> None:
        self._slot = slot
        self._now = now
        self._time = caller.time
        self._deadline = caller.time() + timeout
        self._grace = min(timeout / 5, _MOST_GRACE)
        self._caller = caller
        self._count_lost = count_lost

    async def apply(self, hits: Sequence[Hit], consume: bool) -> list[Decision]:
        """Decide all hits: those of one slot in one operation, and all slots at once.

        When a slot rejects or fails, the request refunds the others. No limit admits more than it may; another request
        can be rejected in between.
        """
        groups = await self._decide(self._by_slot(hits), consume)
        if len(groups) > 1:
            for group in groups:
                if group.stops:
                    await self._withdraw(groups, consume)
                    break
        decisions: list[Any] = [None] * len(hits)
        for group in groups:
            if isinstance(group.result, StoreError):
                raise group.result
            for i, decision in zip(group.positions, group.result, strict=True):
                decisions[i] = decision
        return decisions

    async def correct(self, changes: Sequence[Correction]) -> list[int]:
        """Correct with one operation for each slot, and one for each change of an algorithm without Lua."""
        times = [0] * len(changes)
        with_lua = [i for i, change in enumerate(changes) if PACKED[change.limit] is not None]
        groups = self._by_slot([changes[i] for i in with_lua])
        results = await self._ask_each([group.on_slot(CorrectOperation(group.items, self._now)) for group in groups])
        for group, result in zip(groups, _checked(results), strict=True):
            for i, at in zip(group.positions, result, strict=True):
                times[with_lua[i]] = at
        for i, change in enumerate(changes):
            if PACKED[change.limit] is None:
                times[i] = await self._correct_here(change)
        return times

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete keys: one operation for each slot."""
        groups = self._by_slot(keys)
        _checked(await self._ask_each([group.on_slot(KeyOperation(FORGET, group.items)) for group in groups]))

    def _by_slot(self, items: Sequence[Any]) -> list[Group]:
        groups: dict[int, Group] = {}
        for i, item in enumerate(items):
            slot = self._slot(item if isinstance(item, str) else item[1])  # of a hit or a correction
            group = groups.get(slot)
            if group is None:
                groups[slot] = Group(slot, [i], [item])
            else:
                group.positions.append(i)
                group.items.append(item)
        return list(groups.values())

    async def _ask(self, operation: Operation) -> Any:
        return await self._caller.ask(operation, self._deadline)

    async def _ask_each(self, operations: Sequence[Operation]) -> list[Any]:
        """Return the results or the errors. An operation whose keys are on two servers is split."""
        if not operations:
            return []
        results = await self._caller.ask_each(operations, self._deadline)
        for i, operation in enumerate(operations):
            if isinstance(results[i], MovingSlotError) and len(operation.items) > 1:
                parts = await self._caller.ask_each(operation.split(), self._deadline)
                errors = [part for part in parts if isinstance(part, StoreError)]
                results[i] = errors[0] if errors else [value for part in parts for value in part]
        return results

    async def _decide(self, groups: list[Group], consume: bool) -> list[Group]:
        """Decide groups of hits, and return them. Splits a group whose keys are on two servers: nothing is consumed."""
        stepped = [group for group in groups if not group.is_direct]
        waiting = [group for group in groups if group not in stepped] if stepped else groups
        decided: list[Group] = []
        while waiting:
            operations = [group.on_slot(HitOperation(group.items, self._now, consume)) for group in waiting]
            parts: list[Group] = []
            for group, result in zip(waiting, await self._caller.ask_each(operations, self._deadline), strict=True):
                group.result = result
                if type(result) is MovingSlotError and len(group.items) > 1:
                    parts += group.split()
                else:
                    decided.append(group)
            waiting = parts
        while stepped:
            group = stepped.pop()
            group.is_final = any(each.stops for each in decided)
            group.result = await _result_of(self._apply_group(group.items, consume, group.is_final))
            if type(group.result) is MovingSlotError and len(group.items) > 1:
                stepped += group.split()
            else:
                decided.append(group)
        return decided

    async def _withdraw(self, groups: Sequence[Group], consume: bool) -> None:
        """Refund what the other groups have consumed, and replace their decisions by a peek: one message for each slot.

        The request is rejected or has failed.
        """
        self._deadline = max(self._deadline, self._time() + self._grace)
        unknown = [group for group in groups if type(group.result) is StoreError]
        if consume:
            self._count_lost(sum(len(group.items) for group in unknown))
        passed = [group for group in groups if not (group.stops or group.is_final)]
        stepped = [group for group in passed if not group.is_direct]
        direct = [group for group in passed if group not in stepped]
        refunds = [(group, found) for group in direct if consume and (found := _refunds(group.result))]
        peeked = [] if any(isinstance(group.result, StoreError) for group in groups) else direct
        operations = [group.on_slot(CorrectOperation(found, self._now)) for group, found in refunds]
        operations += [group.on_slot(HitOperation(group.free, self._now, False, True)) for group in peeked]
        results = await self._ask_each(operations)
        for (_, found), result in zip(refunds, results, strict=False):
            self._count_lost(len(found) * isinstance(result, StoreError))
        for group, result in zip(peeked, results[len(refunds) :], strict=True):
            group.replace_allowed(result)
        for group in stepped:
            found = _refunds(group.result) if consume else []
            self._count_lost(len(found) * isinstance(await _result_of(self.correct(found)), StoreError))
            group.replace_allowed(await _result_of(self._apply_group(group.free, False, True)))

    async def _apply_group(self, hits: Sequence[Hit], consume: bool, is_rejected: bool = False) -> list[Decision]:
        """Decide hits whose keys are in one slot. Algorithms without Lua read, decide here, and swap the state."""
        without_lua = [i for i, hit in enumerate(hits) if PACKED[hit.limit] is None]
        if not without_lua:  # of a group that was split
            return list(await self._ask(HitOperation(hits, self._now, consume, is_rejected)))

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            swaps = {i: decide_here(hits[i], text, at) for i, text in zip(without_lua, texts, strict=True)}
            return MixedHitOperation(hits, self._now, at, consume, is_rejected, swaps)

        at, decisions = await self._swap([hits[i].key for i in without_lua], decide)
        return [_lose(hit, at) for hit in hits] if decisions is None else decisions

    async def _correct_here(self, change: Correction) -> int:
        limit, key = change.limit, change.key

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            state = load_state(limit, key, texts[0])
            kept = change.apply_to(state, at)
            reset = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
            corrected = Decision(True, 0, 0, reset, at)
            swap = Swap(pack_swap(limit, texts[0], kept, kept is not state, corrected), corrected, corrected)
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


def _checked(results: list[Any]) -> list[Any]:
    """Return the results; raise the first error among them."""
    for result in results:
        if isinstance(result, StoreError):
            raise result
    return results


async def _result_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return await call
    except StoreError as error:
        return error


def _refunds(decisions: Iterable[Decision]) -> list[Correction]:
    return [Correction.refund(each) for each in decisions if each.allowed and each.hit[2]]


def _lose(hit: Hit, at: int) -> Decision:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decision = Decision(False, 0, _SHORT_US, _SHORT_US, at)
    decision.hit = hit
    return decision
