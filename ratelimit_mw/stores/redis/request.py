"""The operations of a store, each with a time budget. A request may need several calls.

The limits of each slot are decided together. So are those of a rule whose algorithm has no Lua, in this process. When a
part rejects, the others are refunded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from ...decision import BanLimit, Correction, Decision, Hit, banned_rules, count_hits
from ...errors import StoreError
from ..base import MAX_LISTED, KeyPage, numbers_in
from ..bytecall import FOREVER, Write
from ..drivers import Driver
from ..timedcall import TimedCall
from .call import CORRECT, HIT, PEEK, SWAP, Kind, Operation, RedisCall, have_lua, key_of_name
from .errors import MovingSlotError, NotRunError, as_store_error
from .script import PACKED

_MAX_GRACE: Final = 0.01  # seconds: refunds get this time after a server was silent for the whole budget
_SPECIAL: Final = re.compile(r"[*?\[\]\\^-]")
"""The characters with a meaning in the pattern of SCAN."""
_LEAST_MS: Final = 1_000
"""A state stays this long at least, as in the shell."""


class OwnCall(TimedCall):
    """A part of a request for keys in one slot. If another part rejects the request, nothing is consumed."""

    title = "Redis"

    def __init__(self, request: RedisRequest, is_rejected: bool = False) -> None:
        super().__init__(request.driver, request.deadline - request.driver.clock.now)
        self._request = request
        self._is_rejected = is_rejected

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        seconds, microseconds, *loaded = await self._request.ask(self._swap_call(keys, []))
        self.driver.replies += 1
        return loaded, int(seconds) * 1_000_000 + int(microseconds)

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        arguments: list[Any] = []
        for _, data, before, lasts_us in writes:
            milliseconds = 0 if lasts_us == FOREVER else max(_LEAST_MS, -(-lasts_us // 1_000))
            arguments += (*(b"" if each is None else b"=" + each for each in (before, data)), milliseconds)
        keys = [write.key for write in writes]
        return () if await self._request.ask(self._swap_call(keys, arguments)) == 1 else keys

    def _swap_call(self, keys: Sequence[str], arguments: Sequence[Any]) -> RedisCall:
        placed = [self._request.locate(key) for key in keys]
        return RedisCall(SWAP, keys, [name for name, _ in placed], placed[0][1], *arguments)

    def decide(self, hits: Sequence[Hit], loaded: Sequence[Any], at: int) -> tuple[list[Decision], list[Write]]:
        decisions, writes = super().decide(hits, loaded, at)
        if not self._is_rejected or rejects(decisions):
            return decisions, writes
        looks, _ = super().decide([hit._replace(cost=0) for hit in hits], loaded, at)
        for look, hit in zip(looks, hits, strict=True):
            look.hit = hit
        return [look if one.allowed else one for one, look in zip(decisions, looks, strict=True)], []


def rejects(decisions: Sequence[Decision]) -> bool:
    """Return whether a request with these decisions is rejected."""
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


class RedisRequest:
    """A request to a ``RedisStore`` that starts now."""

    now: int | None = None
    """The time in whole microseconds; None means the server's own time."""

    def __init__(self, store: Any, driver: Driver, seconds: float) -> None:
        self._store, self.driver, self._calls = store, driver, driver.connections
        self.locate: Callable[[str], tuple[bytes, int]] = store._locate_key
        self._timeout = seconds
        self.deadline = driver.clock.now + seconds
        self.unmade: list[Correction] = []
        """The corrections that other processes have prevented, and the refunds that were not sent."""

    async def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide all hits: those of one slot in one operation, and all slots at once. Then decide those without Lua.

        When a part rejects or fails, the others are refunded, so no limit admits more than it may.
        """
        self.now, kind = now, HIT if consume else PEEK
        here = [] if have_lua(hits) else _decided_here(hits)
        there = [hit for hit in hits if hit not in here] if here else hits
        decided = await self._run(self._operations(kind, there) + self._operations(kind, here))
        if len(decided) > 1 and True in [each.stops for each in decided]:
            await self._withdraw(decided, consume)
        return _in_order(hits, decided)

    async def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Correct with one operation for each slot, and in this process for algorithms without Lua."""
        self.now = now
        here = [change for change in changes if PACKED[change.limit] is None]
        there = [change for change in changes if PACKED[change.limit] is not None]
        made = await self._run(self._operations(CORRECT, there) + self._operations(CORRECT, here))
        self._keep_unmade(made)
        return _in_order(changes, made)

    async def forget(self, keys: Iterable[str]) -> None:
        """Delete keys."""
        calls = [self._on_key(b"DEL", key) for key in keys]
        await self._calls.ask_each(calls, self.deadline)
        _check(calls)

    async def read_record(self, name: str) -> bytes | None:
        """Return the data of a record."""
        return await OwnCall(self).read_record(name)

    async def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        """Write or delete a record that still is ``before``."""
        return await OwnCall(self).write_record(name, data, before)

    async def ping(self) -> None:
        """Raise ``StoreError`` unless every server of the store takes a write now."""
        for location in await self._calls.primaries(self.deadline):
            # A server that is full, loading or a replica replies to PING, but takes no hit.
            if key := self._calls.map.key_at(location, lambda key: self.locate(key)[1]):
                await self.ask(self._on_key(b"SET", key, b"", b"PX", 1))

    async def list_keys(self, prefix: str, cursor: str = "") -> KeyPage:
        """List with SCAN, one server after the other."""
        number, position = numbers_in(cursor)
        servers = await self._calls.primaries(self.deadline)
        if number >= len(servers):
            return KeyPage([], None)
        pattern = _SPECIAL.sub(r"\\\g<0>", self.locate(prefix)[0].decode()) + "*"
        scan = b"SCAN", position, b"MATCH", pattern, b"COUNT", MAX_LISTED
        try:
            following, names = await self._calls.command(servers[number], self.deadline, *scan)
        except Exception as error:
            raise as_store_error(error) from error
        position = int(following)
        cursor = f"{number}:{position}" if position else f"{number + 1}:0"
        is_last = not position and number + 1 == len(servers)
        return KeyPage([key_of_name(self._store.prefix, name) for name in names], None if is_last else cursor)

    def _on_key(self, verb: bytes, key: str, *arguments: Any) -> RedisCall:
        name, slot = self.locate(key)
        return RedisCall(verb, [key], [name], slot, *arguments)

    def _operations(self, kind: Kind, items: Sequence[Any]) -> list[Operation]:
        """Return an operation for the items of each slot."""
        locate, now = self.locate, self.now
        operations: dict[int, Any] = {}  # ``dict[int, Any]()`` takes 0.4 us
        for item in items:
            name, slot = locate(item[1])
            if (operation := operations.get(slot)) is None:
                operations[slot] = Operation(kind, [item], [name], slot, now)
            else:
                operation.items.append(item)
                operation.names.append(name)
        return list(operations.values())

    async def ask(self, call: RedisCall) -> Any:
        return await self._calls.ask(call, self.deadline)

    async def _run(self, operations: list[Operation]) -> list[Operation]:
        """Run operations: at once by calls, then those without Lua in this process.

        An operation whose keys are on two servers has run nothing: its parts take its place.
        """
        done = [each for each in operations if have_lua(each.items)]
        if done:
            await self._calls.ask_each(done, self.deadline)
        for operation in [each for each in operations if each not in done]:
            await self._run_here(operation, True in [each.stops for each in done])
            done.append(operation)
        moving = [each for each in done if type(each.result) is MovingSlotError and len(each.items) > 1]
        if not moving:
            return done
        parts = await self._run([part for each in moving for part in each.split()])
        return [each for each in done if each not in moving] + parts

    async def _run_here(self, operation: Operation, is_rejected: bool) -> None:
        """Run an operation in this process. When the request is rejected already, it consumes nothing."""
        kind, items = operation.kind, operation.items
        own = OwnCall(self, is_rejected)
        try:
            if kind == CORRECT:
                operation.result, operation.stops = await own.correct(items, self.now), False
            else:
                operation.result = await own.apply(items, self.now, kind.consumes)
                operation.stops = is_rejected or rejects(operation.result)
        except StoreError as error:
            operation.fail(error)
        finally:
            self.unmade += own.unmade

    async def _withdraw(self, decided: list[Operation], consume: bool) -> None:
        """Refund what the other parts have consumed, and replace their decisions by a peek: one call for each slot.

        The request is rejected or has failed.
        """
        self.deadline = max(self.deadline, self.driver.clock.now + min(self._timeout / 5, _MAX_GRACE))
        unknown = [each for each in decided if type(each.result) is StoreError]
        if consume:
            self._store.lost_refunds += count_hits([hit for each in unknown for hit in each.items if hit.cost != 0])
        has_failed = any(isinstance(each.result, StoreError) for each in decided)
        passed = [each for each in decided if not each.stops]
        refunds = [refund for each in passed if consume and (refund := self._refund(each)).items]
        peeks = [] if has_failed else [(each, self._peek(each)) for each in passed]
        asked = await self._run([*refunds, *(peek for _, peek in peeks)])
        failed = [each for each in asked if each.kind == CORRECT and isinstance(each.result, StoreError)]
        self._store.lost_refunds += sum(len(each.items) for each in failed if not isinstance(each.result, NotRunError))
        self._keep_unmade(failed)
        for each, peek in peeks:
            if not isinstance(peek.result, StoreError):
                pairs = zip(each.result, peek.result, strict=True)
                each.result = [looked if one.allowed else one for one, looked in pairs]

    def _keep_unmade(self, corrected: Sequence[Operation]) -> None:
        """Note the corrections that no server has made. Those that run here are left already."""
        for each in corrected:
            if isinstance(each.result, NotRunError) and have_lua(each.items):
                self.unmade += each.items

    def _refund(self, operation: Operation) -> Operation:
        """Return all that its hits have consumed."""
        banned = banned_rules(operation.result)  # only in shadow mode
        consuming = (each for each in operation.result if each.allowed and each.hit[2] and each.rule not in banned)
        refunds = [Correction.refund(each) for each in consuming if not isinstance(each.hit[0], BanLimit)]
        return Operation(CORRECT, refunds, [self.locate(each.key)[0] for each in refunds], operation.slot, self.now)

    def _peek(self, operation: Operation) -> Operation:
        """Look at the limits of a request that is rejected, without a cost."""
        hits = [hit._replace(cost=0) for hit in operation.items]
        return Operation(PEEK, hits, operation.names, operation.slot, self.now)


def _decided_here(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits whose algorithm has no Lua, and those on the bans of their rules."""
    rules = {hit.limit.rule for hit in hits if PACKED[hit.limit] is None}
    return [hit for hit in hits if PACKED[hit[0]] is None or (isinstance(hit[0], BanLimit) and hit[0].rule in rules)]


def _in_order(items: Sequence[Any], done: list[Operation]) -> list[Any]:
    """Return the result of each hit or correction. Raise the error of an operation that failed."""
    _check(done)
    results = {id(item): result for each in done for item, result in zip(each.items, each.result, strict=True)}
    return [results[id(item)] for item in items]


def _check(calls: Sequence[RedisCall]) -> None:
    for each in calls:
        if isinstance(each.result, Exception):  # a ``ConfigError`` too
            raise each.take_error()
