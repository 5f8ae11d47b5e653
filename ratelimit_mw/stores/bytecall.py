"""``ByteCall``: one call on any store of bytes.

It loads the states of a request, decides, and writes them if no other client was faster. Otherwise it decides again,
while there is time.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from ..clock import SECOND
from ..decision import Correction, Decision, Hit, SlotCost, decide_all, reject_uncounted
from ..errors import StateError
from ..runtime.forksafe import CHANCE
from .base import RECORD_PREFIX

FOREVER: Final = 1 << 62
"""The microseconds for which a record is kept, and a state at most."""
DAY: Final = 86_400 * SECOND
DAMAGE: Final = (ValueError, IndexError, ArithmeticError, struct.error, OSError)
"""The errors that a damaged state causes. The system has one for a time that is in no calendar."""
_MAX_PAUSE: Final = 0.0005  # seconds
_RETRY: Final = SECOND // 10
"""Microseconds until a request that lost all of its races may try again."""
_new = tuple.__new__  # builds a ``Write`` faster than the class


class Write(NamedTuple):
    """One value to write.

    Args:
        key: The key.
        data: The new bytes; None deletes the key.
        before: The bytes as they were loaded, None for a key without any. If they have changed, the write is lost.
        lasts_us: The microseconds for which the bytes must be kept at least.
    """

    key: str
    data: bytes | None
    before: bytes | None
    lasts_us: int


class ByteCall:
    """One call on a store of bytes. Its methods are the operations of a store, as coroutines."""

    title = "the store"
    is_atomic = True
    """Whether a swap writes all or none. Otherwise the writes that were not lost are undone."""
    left: Sequence[Correction] = ()
    """The corrections that were not made, and may be made later."""
    hits: Sequence[Hit] = ()
    """The hits that are not decided yet."""
    now: int | None = None
    """The time that the caller gave."""
    retry_until: float = 0.0
    """The time at which another attempt must have ended."""
    is_late: bool = False
    """Whether that time has come for its caller, while another call runs this one."""
    is_over: bool = False
    """Whether the hits are not decided again."""
    times: dict[str, int]
    """The time at which the corrections of each key were made."""
    decisions: list[Decision]
    writes: Sequence[Write] = ()
    """The writes of the hits in the last attempt."""

    @abstractmethod
    async def load(self, keys: Sequence[str]) -> tuple[Sequence[Any], int]:
        """Return the bytes of each key, and the time of the store in microseconds. A state itself is allowed, too."""

    @abstractmethod
    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        """Write each value that has not changed since it was loaded. Return the keys of the others."""

    def time(self) -> float:
        """Return seconds by the clock of ``retry_until``."""
        return 0.0

    async def pause(self, seconds: float) -> None:
        """Wait, so that racing clients do not meet again."""

    def decide(self, hits: Sequence[Hit], loaded: Sequence[Any], at: int) -> tuple[list[Decision], list[Write]]:
        """Return the decisions at a time, and the values to write when the request consumes."""
        try:
            decisions, changes = decide_all(hits, list(map(_state_of, hits, loaded)), at)
            writes = []
            for hit, state in changes:
                i = 0 if hit is hits[0] else [id(each) for each in hits].index(id(hit))
                writes.append(self._write(hit, state, loaded[i], decisions[i].reset_us))
        except DAMAGE as error:
            raise self._damaged(error, _damaged_keys(hits, loaded, at)) from error
        return decisions, writes

    def _write(self, item: Hit | Correction, state: Any, before: Any, lasts_us: int) -> Write:
        data = None if state is None else item[0].algorithm.dump(state)
        if self.now is not None and lasts_us < DAY:  # a time that the caller gave does not show when a state expires
            lasts_us = DAY
        return _new(Write, (item[1], data, before, lasts_us if lasts_us < FOREVER else FOREVER))

    def _damaged(self, error: Exception, keys: Sequence[str]) -> StateError:
        return StateError(f"{self.title}: a damaged state: {type(error).__name__}: {error}", keys)

    async def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide the hits of a request, and consume them when all are allowed."""
        self.hits, self.now = hits, now
        if not hits:
            return []
        if consume:
            await self.run()
        else:
            await self._step_all([self])
        return self.decisions

    async def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Make corrections, one after the other. Those that other clients have prevented are ``left``."""
        self.left, self.now, self.times = changes, now, {}
        if changes:
            await self.run()
        return [self.times[change.key] for change in changes]

    @abstractmethod
    async def run(self) -> None:
        """Make the corrections and decide the hits of this call."""

    async def run_all(self, calls: Sequence[ByteCall]) -> None:
        """Run calls on states that are read and written once, one call after another, until no write is lost.

        A request that loses all of its races is rejected: a store that replies has not failed.
        """
        longest, has_lost = 0.0, False
        while calls:
            began = self.time()
            try:
                made, lost = await self._attempt(calls)
            except TimeoutError:
                if not has_lost:
                    raise
                for each in calls:
                    each.give_up(may_count=True)
                return
            if not lost:
                return
            longest, has_lost = max(longest, self.time() - began), True
            is_over = self.time() + longest >= self.retry_until
            ended = zip(calls, made, strict=True)
            calls = [each for each, changes in ended if each.end_attempt(changes, lost, is_over or each.is_late)]
            await self.pause(CHANCE.uniform(0, _MAX_PAUSE))

    async def _attempt(self, calls: Sequence[ByteCall]) -> tuple[list[Sequence[Correction]], Collection[str]]:
        """Run calls once. Return the corrections that each has made, and the keys whose writes were lost."""
        writes = await self._step_all(calls)
        made = [each.left for each in calls]
        for each in calls:
            # Without a reply the store may have made them. Slots have an id, so they alone can be returned twice.
            each.left = [change for change in each.left if change.limit.quota.concurrent]
        if not (lost := await self._swap(calls, writes) if writes else ()):
            for each in calls:
                each.left = ()
        return made, lost

    async def _step_all(self, calls: Sequence[ByteCall]) -> list[Write]:
        """Let each call see the states that the one before has left. Return what to write."""
        keys = list(dict.fromkeys([key for each in calls for key in each.used_keys()]))
        loaded, clock = await self.load(keys)
        before = dict(zip(keys, loaded, strict=True))
        states, writes = before.copy(), dict[str, Write]()
        for each in calls:
            at = clock if each.now is None else each.now
            written = each.make_corrections(states, at) if each.left else []
            if each.hits:
                each.decisions, each.writes = each.decide(each.hits, [states[hit[1]] for hit in each.hits], at)
                written += each.writes
            for write in written:
                key = write.key
                states[key] = write.data
                writes[key] = write if write.before is before[key] else write._replace(before=before[key])
        return list(writes.values())

    def used_keys(self) -> list[str]:
        """Return the keys of the corrections that are left, and those of the hits."""
        keys = [hit[1] for hit in self.hits]
        return [*(change.key for change in self.left), *keys] if self.left else keys

    def make_corrections(self, states: dict[str, Any], at: int) -> list[Write]:
        """Make those that are left, in their order. Those without effect are done."""
        made, writes = [], []
        for change in self.left:
            limit, key = change.limit, change.key
            self.times[key] = at
            try:
                before = _state_of(change, states[key])
                state = change.apply_to(before, at)
                if state is not before:
                    made.append(change)
                    writes.append(self._write(change, state, states[key], limit.decide(state, at, 0)[1].reset_us))
                    states[key] = writes[-1].data
            except DAMAGE as error:
                raise self._damaged(error, [key]) from error
        self.left = made
        return writes

    def end_attempt(self, changes: Sequence[Correction], lost: Collection[str], is_over: bool) -> bool:
        """Return whether another attempt follows: when the time is over, one that only undoes and corrects."""
        was_over, self.is_over = self.is_over, is_over
        self.keep_lost(changes, lost)
        if is_over:
            self.give_up()
        has_more = not was_over and bool(self.hits or self.left)
        if not has_more:
            self.end()
        return has_more

    def end(self) -> None:
        """Note that no attempt follows."""

    def keep_lost(self, changes: Sequence[Correction], lost: Collection[str]) -> None:
        """Keep what was lost, to try it again. If other writes of the hits were not lost, these are undone.

        Shadow limits reject nothing: when the time is over, hits that have lost only theirs stay as they are.
        """
        if self.is_atomic:
            self.left = changes
            return
        self.left = [change for change in changes if change.key in lost]
        written = {write.key for write in self.writes}
        losers = [hit for hit in self.hits if hit[1] in lost and hit[1] in written]
        if self.is_over and all(hit[0].shadow for hit in losers):
            losers = []
        if not losers:
            self.hits = ()
            return
        self.times = {}
        self.left += self.refunds_of(written.difference(lost))

    def refunds_of(self, keys: set[str]) -> list[Correction]:
        """Return the refunds of the hits that have consumed, on some keys."""
        return [Correction.refund(each) for each in self.decisions if each.hit[1] in keys and each.hit[2]]

    def give_up(self, may_count: bool = False) -> None:
        """Reject the hits, unless a limit does. If the store may count them, return their slots, which have an id."""
        if self.hits and all(each.allowed or each.shadow for each in self.decisions):
            reject_uncounted(self.decisions, _RETRY)
        slots = [hit for hit in self.hits if may_count and isinstance(hit.cost, SlotCost)]
        self.left = [*self.left, *(Correction.return_slots(*hit[:2], hit.cost) for hit in slots)]  # type: ignore[arg-type]
        self.hits = ()

    async def _swap(self, calls: Sequence[ByteCall], writes: Sequence[Write]) -> Collection[str]:
        """Write all. Queues come last, one by one: nothing can refund a place with another request behind it."""
        queues = [] if self.is_atomic else [h[1] for each in calls for h in each.hits if h[0].algorithm.delays]
        first = [write for write in writes if write.key not in queues]
        lost = await self.swap(first) if first else ()
        for write in writes if queues else ():
            if write.key in queues:
                lost = [*lost, write.key] if lost else await self.swap([write])
        return lost

    async def forget(self, keys: Iterable[str]) -> None:
        """Delete keys."""
        left = list(keys)
        while left:
            loaded, _ = await self.load(left)
            writes = [Write(key, None, data, 0) for key, data in zip(left, loaded, strict=True) if data is not None]
            left = list(await self.swap(writes))

    async def read_record(self, name: str) -> bytes | None:
        """Return the data of a record."""
        loaded, _ = await self.load([RECORD_PREFIX + name])
        return cast("bytes | None", loaded[0])

    async def write_record(self, name: str, data: bytes | None, before: bytes | None) -> bool:
        """Write or delete a record that still is ``before``."""
        key = RECORD_PREFIX + name
        (known,), _ = await self.load([key])
        if known != before:
            return False
        return data is None is known or not await self.swap([Write(key, data, known, FOREVER)])

    async def ping(self) -> None:
        """Raise an error unless the store replies."""
        await self.load([""])


def _state_of(item: Hit | Correction, loaded: Any) -> Any:
    """Return the state in the bytes of a key, or a state itself."""
    return item[0].algorithm.load(loaded) if type(loaded) is bytes else loaded


def _damaged_keys(hits: Sequence[Hit], loaded: Sequence[Any], at: int) -> list[str]:
    """Return the keys whose bytes are no state, or one with impossible numbers."""
    keys = []
    for hit, data in zip(hits, loaded, strict=True):
        try:
            hit.limit.decide(_state_of(hit, data), at, hit.cost)
        except DAMAGE:
            keys.append(hit.key)
    return keys
