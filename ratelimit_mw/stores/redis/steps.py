"""Requests that need several calls: algorithms without Lua, and keys in several slots of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from ...decision import Decision, Hit, count_hits, reject_uncounted
from ...errors import StateError, StoreError
from ...receipt import Correction
from .client.errors import MovingSlotError
from .client.server import Caller
from .key_operations import FORGET, READ, KeyOperation
from .message import (
    CORRECT,
    HIT,
    PEEK,
    REJECTED,
    ConflictError,
    CorrectOperation,
    HitOperation,
    Operation,
    have_lua,
)
from .script import PACKED
from .swap import MixedHitOperation, Swap, decide_here, load_state, pack_swap, rejects

_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_MOST_GRACE: Final = 0.01  # seconds: refunds get this time after a server was silent for the whole budget
_Kind = TypeVar("_Kind", bound=Operation)


class SteppedRequest:
    """A request that starts now.

    Args:
        caller: The connections.
        place: Returns the name of a key in Redis, and its slot: the same for all keys without a cluster.
        now: The time in whole microseconds; None means the server's own time.
        timeout: The time budget in seconds.
        count_lost: Called with a number of refunds that are not made, or not known to be.
        leave: Receives the corrections that other processes have prevented, and ``now``.
    """

    def __init__(
        self,
        caller: Caller,
        place: Callable[[str], tuple[bytes, int]],
        now: int | None,
        timeout: float,
        count_lost: Callable[[int], None],
        leave: Callable[[Sequence[Correction], int | None], None],
    ) -> None:
        self._caller = caller
        self._place = place
        self._now = now
        self._timeout = timeout
        self._deadline = caller.clock.now + timeout
        self._count_lost = count_lost
        self._leave = leave
        self._lost_at: int | None = None  # the time of the first correction that lost its races

    async def apply(self, hits: Sequence[Hit], consume: bool) -> list[Decision]:
        """Decide all hits: those of one slot in one operation, and all slots at once.

        When a slot rejects or fails, the request refunds the others. No limit admits more than it may; another request
        can be rejected in between.
        """
        operations = self._by_slot(HitOperation, HIT if consume else PEEK, hits)
        if not have_lua(hits):
            operations = await self._decide_in_turn(operations)
        elif operations:
            await self._caller.ask_each(operations, self._deadline)
        for each in operations:
            if each.stops:
                operations = await self._reject(operations, consume)
                break
        decisions: list[Any] = [None] * len(hits)
        for each in operations:
            for i, decision in zip(each.positions, each.result, strict=True):
                decisions[i] = decision
        return decisions

    async def _reject(self, operations: list[HitOperation], consume: bool) -> list[HitOperation]:
        """Ask again for slots that are moving; refund what a rejected or failed request has consumed."""
        operations = await self._split_moving(operations)
        if len(operations) > 1 and True in [each.stops for each in operations]:
            await self._withdraw(operations, consume)
        return _checked(operations)

    async def correct(self, changes: Sequence[Correction]) -> list[int]:
        """Correct with one operation for each slot, and one for each change of an algorithm without Lua."""
        times = [0] * len(changes)
        with_lua = [i for i, change in enumerate(changes) if PACKED[change.limit] is not None]
        operations = self._by_slot(CorrectOperation, CORRECT, [changes[i] for i in with_lua])
        await self._ask_each(operations)
        for each in _checked(operations):
            for i, at in zip(each.positions, each.result, strict=True):
                times[with_lua[i]] = at
        for i, change in enumerate(changes):
            if PACKED[change.limit] is None:
                times[i] = await self._correct_here(change)
        return times

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete keys: one operation for each slot."""
        operations = self._by_slot(KeyOperation, FORGET, keys)
        await self._ask_each(operations)
        _checked(operations)

    def _by_slot(self, type_: Callable[..., _Kind], kind: int, items: Sequence[Any]) -> list[_Kind]:
        place, now = self._place, self._now
        operations: dict[int, Any] = {}  # ``dict[int, Any]()`` takes 0.4 us
        for i, item in enumerate(items):
            name, slot = place(item if isinstance(item, str) else item[1])  # of a hit or a correction
            if (operation := operations.get(slot)) is None:
                operations[slot] = type_(kind, [item], [name], slot, now, [i])
            else:
                operation.items.append(item)
                operation.names.append(name)
                operation.positions.append(i)
        return list(operations.values())

    async def _ask(self, operation: Operation) -> Any:
        return await self._caller.ask(operation, self._deadline)

    async def _ask_each(self, operations: Sequence[Operation]) -> None:
        """Ask for the results. An operation whose keys are on two servers has the results of its parts."""
        if operations:
            await self._caller.ask_each(operations, self._deadline)
        for each in operations:
            if type(each.result) is MovingSlotError and len(each.items) > 1:
                parts = each.split()
                await self._caller.ask_each(parts, self._deadline)
                errors = [part.result for part in parts if isinstance(part.result, StoreError)]
                each.result = errors[0] if errors else [value for part in parts for value in part.result]

    async def _split_moving(self, operations: list[HitOperation]) -> list[HitOperation]:
        """Split the operations whose keys are on two servers: they have consumed nothing."""
        moving = [each for each in operations if type(each.result) is MovingSlotError and len(each.items) > 1]
        if not moving:
            return operations
        parts = [part for each in moving for part in each.split()]
        await self._caller.ask_each(parts, self._deadline)
        return [each for each in operations if each not in moving] + parts

    async def _decide_in_turn(self, operations: list[HitOperation]) -> list[HitOperation]:
        """Decide hits of algorithms without Lua one slot after another. After a rejection they consume nothing."""
        waiting = [each for each in operations if not have_lua(each.items)]
        decided = [each for each in operations if each not in waiting]
        if decided:
            await self._caller.ask_each(decided, self._deadline)
            decided = await self._split_moving(decided)
        while waiting:
            operation = waiting.pop()
            if operation.kind <= PEEK and True in [each.stops for each in decided]:
                operation.kind += REJECTED
            await self._apply_mixed(operation)
            if type(operation.result) is MovingSlotError and len(operation.items) > 1:
                waiting += operation.split()
            else:
                decided.append(operation)
        return decided

    async def _withdraw(self, operations: Sequence[HitOperation], consume: bool) -> None:
        """Refund what the other slots have consumed, and replace their decisions by a peek: one message for each slot.

        The request is rejected or has failed.
        """
        self._deadline = max(self._deadline, self._caller.clock.now + min(self._timeout / 5, _MOST_GRACE))
        unknown = [each for each in operations if type(each.result) is StoreError]
        if consume:
            self._count_lost(count_hits([hit for each in unknown for hit in each.items if hit.cost != 0]))
        passed = [each for each in operations if not (each.stops or each.kind > PEEK)]
        direct = [each for each in passed if have_lua(each.items)]
        refunds = [refund for each in direct if consume and (refund := self._refund(each)).items]
        has_failed = any(isinstance(each.result, StoreError) for each in operations)
        peeks = [] if has_failed else [(each, self._peek(each)) for each in direct]
        await self._ask_each([*refunds, *(peek for _, peek in peeks)])
        self._count_lost(sum(len(each.items) for each in refunds if isinstance(each.result, StoreError)))
        for each, peek in peeks:
            _replace_allowed(each, peek.result)
        for each in passed:
            if each not in direct:
                found = _refunds(each.result) if consume else []
                self._count_lost(len(found) * isinstance(await _result_of(self.correct(found)), StoreError))
                peek = self._peek(each)
                await self._apply_mixed(peek)
                _replace_allowed(each, peek.result)

    def _refund(self, operation: HitOperation) -> CorrectOperation:
        found = _refunds(operation.result)
        return CorrectOperation(CORRECT, found, [self._place(each.key)[0] for each in found], operation.slot, self._now)

    def _peek(self, operation: HitOperation) -> HitOperation:
        """Look at the limits of a request that is rejected, without a cost."""
        hits = [hit._replace(cost=0) for hit in operation.items]
        return HitOperation(PEEK + REJECTED, hits, operation.names, operation.slot, self._now)

    async def _apply_mixed(self, operation: HitOperation) -> None:
        """Decide hits whose keys are in one slot. Algorithms without Lua read, decide here, and swap the state."""
        try:
            operation.result = await self._decide_mixed(operation)
            operation.stops = rejects(operation.result)
        except StoreError as error:
            operation.fail(error)

    async def _decide_mixed(self, operation: HitOperation) -> list[Decision]:
        kind, hits, names, slot = operation.kind, operation.items, operation.names, operation.slot
        without_lua = [i for i, hit in enumerate(hits) if PACKED[hit.limit] is None]
        if not without_lua:  # of an operation that was split
            return list(await self._ask(operation))

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            swaps = {i: decide_here(hits[i], text, at) for i, text in zip(without_lua, texts, strict=True)}
            return MixedHitOperation(kind, hits, names, slot, self._now, at, swaps)

        at, decisions = await self._swap([hits[i].key for i in without_lua], decide)
        return _lose(hits, at) if decisions is None else decisions

    async def _correct_here(self, change: Correction) -> int:
        limit, key = change.limit, change.key
        name, slot = self._place(key)

        def decide(at: int, texts: Sequence[bytes | None]) -> MixedHitOperation:
            state = load_state(limit, key, texts[0])
            kept = change.apply_to(state, at)
            reset = 0 if kept is None else limit.decide(kept, at, 0)[1].reset_us
            corrected = Decision(True, 0, 0, reset, at)
            swap = Swap(pack_swap(limit, texts[0], kept, kept is not state, corrected), corrected, corrected)
            return MixedHitOperation(HIT, [Hit(limit, key, 1)], [name], slot, self._now, at, {0: swap})

        at, decisions = await self._swap([key], decide, is_correction=True)
        if decisions is None:
            self._lost_at = at
            self._leave([change], self._now)
        return at

    async def _swap(
        self,
        keys: list[str],
        decide: Callable[[int, Sequence[bytes | None]], MixedHitOperation],
        is_correction: bool = False,
    ) -> tuple[int, list[Decision] | None]:
        """Return the time and the decisions; None when other processes changed the states until the budget ended."""
        (read,) = self._by_slot(KeyOperation, READ, keys)
        at, has_lost, longest = self._lost_at or 0, self._lost_at is not None, 0.0
        while not has_lost or self._caller.clock.now + 2 * longest < self._deadline:
            began, is_sent = self._caller.clock.now, False
            try:
                at, texts = await self._ask(read)
                is_sent = is_correction
                return at, await self._ask(decide(at, texts))
            except ConflictError:
                has_lost, longest = True, max(longest, self._caller.clock.now - began)
            except StoreError as error:
                # A correction may be made although its reply is missing, so it must not be made again.
                if not has_lost or is_sent or isinstance(error, StateError):
                    raise
                break  # the server did answer: the request lost a race
        return at, None


def _replace_allowed(operation: HitOperation, peeks: Any) -> None:
    """Replace the decisions on allowed hits by those of a peek, unless that failed."""
    if not isinstance(peeks, StoreError):
        operation.result = [peek if one.allowed else one for one, peek in zip(operation.result, peeks, strict=True)]


def _checked(operations: list[_Kind]) -> list[_Kind]:
    """Return the operations; raise the first error among their results."""
    for each in operations:
        if isinstance(each.result, Exception):  # a ``ConfigError`` too
            raise each.result
    return operations


async def _result_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return await call
    except StoreError as error:
        return error


def _refunds(decisions: Sequence[Decision]) -> list[Correction]:
    banned = {each.rule for each in decisions if each.hit[0].is_ban and not each.allowed}  # only in shadow mode
    consuming = (each for each in decisions if each.allowed and each.hit[2] and not each.hit[0].is_ban)
    return [Correction.refund(each) for each in consuming if each.rule not in banned]


def _lose(hits: Sequence[Hit], at: int) -> list[Decision]:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decisions = [Decision(True, hit.limit.limit, 0, 0, at, 0, hit) for hit in hits]
    reject_uncounted(decisions, _SHORT_US)
    return decisions
