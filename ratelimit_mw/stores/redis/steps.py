"""Requests that need several calls: keys in several slots of a cluster, and algorithms without Lua.

The limits of each slot are decided together. So are those of a rule whose algorithm has no Lua: this process decides
them on the states that it has read, and writes if these are unchanged. When a part rejects, the others are refunded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from ...decision import (
    BanLimit,
    Correction,
    Decision,
    Hit,
    Limit,
    banned_rules,
    count_hits,
    decide_all,
    reject_uncounted,
)
from ...errors import StateError, StoreError
from .call import CORRECT, HIT, PEEK, REJECTED, SWAP, Call, Operation, swap_arguments, undecodable
from .client.errors import MovingSlotError
from .client.server import Caller
from .script import PACKED

_SHORT_US: Final = 1_000  # until a request that lost every race may try again
_MOST_GRACE: Final = 0.01  # seconds: refunds get this time after a server was silent for the whole budget
_LAST: Final = 5  # no attempt starts in this part of the time budget
_LEAST_MS: Final = 1_000
"""A state stays this long at least, as in the shell."""
_DAY_MS: Final = 86_400_000
_LONGEST_MS: Final = 10**14
_Kind = TypeVar("_Kind", bound=Call)
_States = Mapping[str, Any]
_Decided = tuple[list[Decision], list[tuple[Hit, Any]]]


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
        """Decide all hits: those of one slot in one operation, and all slots at once. Then decide those without Lua.

        When a part rejects or fails, the request refunds the others. No limit admits more than it may; another request
        can be rejected in between.
        """
        kind, rules = HIT if consume else PEEK, {hit.limit.rule for hit in hits if PACKED[hit.limit] is None}
        here = [i for i, hit in enumerate(hits) if rules and _is_decided_here(hit, rules)]
        there = [i for i in range(len(hits)) if i not in here] if here else range(len(hits))
        operations = await self._ask_for_hits(self._operations(kind, hits, there))
        own: list[Operation] = []
        for operation in self._operations(kind, hits, here):
            if True in [each.stops for each in operations + own]:
                operation.kind = kind + REJECTED
            own += await self._decide(operation)
        decided = operations + own
        if len(decided) > 1 and True in [each.stops for each in decided]:
            await self._withdraw(operations, own, consume)
        decisions: list[Any] = [None] * len(hits)
        for each in _checked(decided):
            for i, decision in zip(each.positions, each.result, strict=True):
                decisions[i] = decision
        return decisions

    async def correct(self, changes: Sequence[Correction]) -> list[int]:
        """Correct with one operation for each slot, and one for each change of an algorithm without Lua."""
        times = [0] * len(changes)
        with_lua = [i for i, change in enumerate(changes) if PACKED[change.limit] is not None]
        operations = self._operations(CORRECT, changes, with_lua)
        await self._ask_each(operations)
        for each in _checked(operations):
            for i, at in zip(each.positions, each.result, strict=True):
                times[i] = at
        for i, change in enumerate(changes):
            if PACKED[change.limit] is None:
                times[i] = await self._correct_here(change)
        return times

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete keys: one command for each slot."""
        by_slot: dict[int, tuple[list[str], list[bytes]]] = {}
        for key in keys:
            name, slot = self._place(key)
            group = by_slot.setdefault(slot, ([], []))
            group[0].append(key)
            group[1].append(name)
        calls = [Call(b"DEL", *group, slot) for slot, group in by_slot.items()]
        await self._ask_each(calls)
        _checked(calls)

    def _operations(self, kind: int, items: Sequence[Any], positions: Sequence[int]) -> list[Operation]:
        """Return an operation for the items of each slot at these positions."""
        place, now = self._place, self._now
        operations: dict[int, Any] = {}  # ``dict[int, Any]()`` takes 0.4 us
        for i in positions:
            item = items[i]
            name, slot = place(item[1])
            if (operation := operations.get(slot)) is None:
                operations[slot] = Operation(kind, [item], [name], slot, now, [i])
            else:
                operation.items.append(item)
                operation.names.append(name)
                operation.positions.append(i)
        return list(operations.values())

    async def _ask_for_hits(self, operations: list[Operation]) -> list[Operation]:
        """Ask for decisions. Split the operations whose keys are on two servers: they have consumed nothing."""
        if not operations:
            return []
        await self._caller.ask_each(operations, self._deadline)
        moving = [each for each in operations if _is_moving(each)]
        if not moving:
            return operations
        parts = [part for each in moving for part in each.split()]
        await self._caller.ask_each(parts, self._deadline)
        return [each for each in operations if each not in moving] + parts

    async def _ask_each(self, calls: Sequence[Call]) -> None:
        """Ask for the results. A call whose keys are on two servers has the results of its parts."""
        if calls:
            await self._caller.ask_each(calls, self._deadline)
        for each in calls:
            if _is_moving(each):
                parts = each.split()
                await self._caller.ask_each(parts, self._deadline)
                errors = [part.result for part in parts if isinstance(part.result, StoreError)]
                values = [part.result if isinstance(part.result, list) else [part.result] for part in parts]
                each.result = errors[0] if errors else [*chain(*values)]

    async def _withdraw(self, operations: list[Operation], own: list[Operation], consume: bool) -> None:
        """Refund what the other parts have consumed, and replace their decisions by a peek: one call for each slot.

        The request is rejected or has failed.
        """
        self._deadline = max(self._deadline, self._caller.clock.now + min(self._timeout / 5, _MOST_GRACE))
        decided = operations + own
        unknown = [each for each in decided if type(each.result) is StoreError]
        if consume:
            self._count_lost(count_hits([hit for each in unknown for hit in each.items if hit.cost != 0]))
        passed = [each for each in operations if not each.stops]
        refunds = [refund for each in passed if consume and (refund := self._refund(each)).items]
        has_failed = any(isinstance(each.result, StoreError) for each in decided)
        peeks = [] if has_failed else [(each, self._peek(each)) for each in passed]
        await self._ask_each([*refunds, *(peek for _, peek in peeks)])
        self._count_lost(sum(len(each.items) for each in refunds if isinstance(each.result, StoreError)))
        for each in own:
            if not each.stops and each.kind <= PEEK:
                found = _refunds(each.result) if consume else []
                self._count_lost(len(found) * isinstance(await _result_of(self.correct(found)), StoreError))
                peeks += [(each, peek) for peek in await self._decide(self._peek(each))]
        for each, peek in peeks:
            if not isinstance(peek.result, StoreError):
                pairs = zip(each.result, peek.result, strict=True)
                each.result = [looked if one.allowed else one for one, looked in pairs]

    def _refund(self, operation: Operation) -> Operation:
        found = _refunds(operation.result)
        return Operation(CORRECT, found, [self._place(each.key)[0] for each in found], operation.slot, self._now)

    def _peek(self, operation: Operation) -> Operation:
        """Look at the limits of a request that is rejected, without a cost."""
        hits = [hit._replace(cost=0) for hit in operation.items]
        return Operation(PEEK + REJECTED, hits, operation.names, operation.slot, self._now)

    # -- decided here ----------------------------------------------------------------------------------------------

    async def _decide(self, operation: Operation) -> list[Operation]:
        """Decide the hits of one slot in this process. Return the operation, or its parts when the slot is moving."""
        kind, hits = operation.kind, operation.items

        def decide(at: int, states: _States) -> _Decided:
            decisions, writes = decide_all(hits, [states[hit.key] for hit in hits], at)
            if kind > PEEK and not _rejects(decisions):  # only by others
                looks = decide_all([hit._replace(cost=0) for hit in hits], [states[hit.key] for hit in hits], at)[0]
                decisions = [look if one.allowed else one for one, look in zip(decisions, looks, strict=True)]
                writes = []
            for decision, hit in zip(decisions, hits, strict=True):
                decision.hit = hit
            return decisions, writes if kind in (HIT, HIT + REJECTED) else []

        try:
            at, decisions = await self._swap({hit.key: hit.limit for hit in hits}, decide)
            operation.result = _lose(hits, at) if decisions is None else decisions
            operation.stops = _rejects(operation.result)
        except StoreError as error:
            operation.fail(error)
        if not _is_moving(operation):
            return [operation]
        return [part for each in operation.split() for part in await self._decide(each)]

    async def _correct_here(self, change: Correction) -> int:
        def decide(at: int, states: _States) -> _Decided:
            state = states[change.key]
            kept = change.apply_to(state, at)
            return [], [] if kept is state else [(Hit(*change[:3]), kept)]

        at, decisions = await self._swap({change.key: change.limit}, decide, is_correction=True)
        if decisions is None:
            self._lost_at = at
            self._leave([change], self._now)
        return at

    async def _swap(
        self, limits: Mapping[str, Limit], decide: Callable[[int, _States], _Decided], is_correction: bool = False
    ) -> tuple[int, list[Decision] | None]:
        """Return the time and the decisions; None when other processes changed the states until the budget ended."""
        at, has_lost, is_sent = self._lost_at or 0, self._lost_at is not None, False
        while not has_lost or self._caller.clock.now < self._deadline - self._timeout / _LAST:
            is_sent = False
            try:
                at, texts = await self._read(limits)
                decisions, writes = decide(at, {key: _load(limits[key], key, text) for key, text in texts.items()})
                is_sent = is_correction
                if not writes or await self._ask(self._write(writes, texts, at)) == 1:
                    return at, decisions
            except StoreError as error:
                # A correction may be made although its reply is missing, so it must not be made again.
                if not has_lost or is_sent or isinstance(error, (StateError, MovingSlotError)):
                    raise
                break  # the server did answer: the request lost a race
            has_lost = True
        return at, None

    async def _read(self, limits: Mapping[str, Limit]) -> tuple[int, dict[str, bytes | None]]:
        """Return the time and the values of keys in one slot."""
        placed = {key: self._place(key) for key in limits}
        calls = [Call(b"GET", [key], [name], slot) for key, (name, slot) in placed.items()]
        clock = Call(b"TIME", (), (), calls[0].slot)
        await self._caller.ask_each([clock, *calls], self._deadline)
        _checked([clock, *calls])
        seconds, microseconds = map(int, clock.result)
        at = seconds * 1_000_000 + microseconds if self._now is None else self._now
        return at, {key: call.result for key, call in zip(placed, calls, strict=True)}

    def _write(self, writes: Sequence[tuple[Hit, Any]], texts: Mapping[str, bytes | None], at: int) -> Call:
        """Return the call that writes states if they are still as they were read."""
        kept = {hit.key: (hit.limit, state) for hit, state in writes}
        placed = [self._place(key) for key in kept]
        arguments: list[Any] = []
        for key, (limit, state) in kept.items():
            reset = 0 if state is None else limit.decide(state, at, 0)[1].reset_us
            least = _LEAST_MS if self._now is None else _DAY_MS
            milliseconds = max(least, min(-(-reset // 1_000), _LONGEST_MS))
            text = None if state is None else limit.algorithm.dump(state)
            arguments += swap_arguments(texts[key], text, milliseconds)
        return Call(SWAP, [*kept], [name for name, _ in placed], placed[0][1], *arguments)

    async def _ask(self, call: Call) -> Any:
        return await self._caller.ask(call, self._deadline)


def _is_decided_here(hit: Hit, rules: set[str]) -> bool:
    """Return whether an algorithm has no Lua, or it is the ban of a rule with such an algorithm."""
    return PACKED[hit.limit] is None or (isinstance(hit.limit, BanLimit) and hit.limit.rule in rules)


def _is_moving(call: Call) -> bool:
    return type(call.result) is MovingSlotError and len(call.items) > 1


def _load(limit: Limit, key: str, text: bytes | None) -> Any:
    try:
        return None if text is None else limit.algorithm.load(text)
    except ValueError as error:
        raise undecodable(key) from error


def _rejects(decisions: Sequence[Decision]) -> bool:
    """Return whether a request with these decisions is rejected."""
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


def _checked(calls: list[_Kind]) -> list[_Kind]:
    for each in calls:
        if isinstance(each.result, Exception):  # a ``ConfigError`` too
            raise each.result
    return calls


async def _result_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return await call
    except StoreError as error:
        return error


def _refunds(decisions: Sequence[Decision]) -> list[Correction]:
    banned = banned_rules(decisions)  # only in shadow mode
    consuming = (each for each in decisions if each.allowed and each.hit[2] and not isinstance(each.hit[0], BanLimit))
    return [Correction.refund(each) for each in consuming if each.rule not in banned]


def _lose(hits: Sequence[Hit], at: int) -> list[Decision]:
    """Reject a request that lost every race within its time budget. It may try again at once."""
    decisions = [Decision(True, hit.limit.limit, 0, 0, at, 0, hit) for hit in hits]
    reject_uncounted(decisions, _SHORT_US)
    return decisions
