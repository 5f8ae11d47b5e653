"""Stores of bytes: a subclass loads states and swaps them, and calls that wait for a key are decided together.

``ByteStore`` is the base of a store of your own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from typing import ClassVar, Final

from ..algorithms.window_log import SlidingWindowLog, TieredWindow
from ..clock import Clock, machine
from ..decision import Correction, Limit, decide_all
from ..errors import ConfigError, StateError
from .bytecall import ByteCall, Write
from .calls import CallStore
from .ways import Way

_ATTEMPTS: Final = 0.7
"""The part of the time budget in which an attempt must end. The rest undoes the last one."""


def wall_us() -> int:
    """Return microseconds since 1970 by the wall clock, the clock that several machines can agree on."""
    return machine.time_ns() // 1000


class TimedCall(ByteCall):
    """A call with a time budget. It takes its turn at its keys, with all calls of its process that wait for them."""

    joins = True
    """Whether it can be decided together with others."""
    keys: Set[str] = frozenset()
    turn: Future[Sequence[TimedCall]]
    """The calls to decide in its turn, none if another call has decided this one. Done while no other call runs it."""

    def __init__(self, way: Way, seconds: float) -> None:
        self.way = way
        self.pause = way.pause  # type: ignore[method-assign]
        self.due = way.clock.now + seconds
        self.last = self.due - (1 - _ATTEMPTS) * seconds

    def time(self) -> float:
        return self.way.clock.now

    @property
    def unmade(self) -> Sequence[Correction]:
        """The corrections to make later. Another call that still runs this one makes them now."""
        return self.left if not hasattr(self, "turn") or self.turn.done() else ()

    async def run(self) -> None:
        """Run this call in its turn, if no other call runs it with its own."""
        turns, self.keys = self.way.turns, set(self.used_keys())
        if not turns.take(self):
            await self._run_later()
            return
        try:
            await self.run_all([self])
        finally:
            turns.end([self])

    async def _run_later(self) -> None:
        """Wait for the turn.

        Without a turn in time, although the store has replied to others, hits are rejected, and corrections race.
        """
        replies, problem = self.way.replies, None
        try:
            calls = await self.way.result(self.turn, self.last)
        except BaseException as error:
            if self.way.turns.leave(self):
                if not isinstance(error, TimeoutError) or self.way.replies == replies:
                    raise
                if self.left:
                    await self.run_all([self])
                else:
                    self.decisions = decide_all(self.hits, [None] * len(self.hits), self.now or 0)[0]
                    self.give_up()
                return
            problem, self.is_late = error, True  # its turn has come, or another call runs it
        try:
            if problem is not None:
                calls = await self.way.result(self.turn, self.due)
            if calls:
                await self.way.complete(self._lead(calls))
        finally:
            if problem is not None and not isinstance(problem, TimeoutError):
                raise problem  # the caller was cancelled

    async def _lead(self, calls: Sequence[TimedCall]) -> None:
        """Run these calls, of which this one has most time left, and end the turn. A damaged state fails its own."""
        self.turn, left = Future(), calls
        try:
            while True:
                try:
                    await self.run_all(left)
                    break
                except StateError as error:  # nothing was written
                    for each in [each for each in left if not each.keys.isdisjoint(error.keys)] or left:
                        each.end(error)
                    left = [each for each in left if not each.turn.done()]
            for each in left:
                each.end()
        except BaseException as error:
            for each in left:
                each.end(error if isinstance(error, Exception) else TimeoutError())
            raise
        finally:
            self.way.turns.end(calls)
        self.turn.result()

    def end(self, error: Exception | None = None) -> None:
        """Let the caller continue, before the other calls of its turn end. No call runs this one any longer."""
        if not hasattr(self, "turn") or self.turn.done():
            return
        if error is None:
            self.turn.set_result(())
        else:
            self.turn.set_exception(error)


class _StoreCall(TimedCall):
    """A call on a store of your own."""

    def __init__(self, store: ByteStore, way: Way, seconds: float) -> None:
        super().__init__(way, seconds)
        self.title, self.is_atomic = str(store), store.is_atomic  # type: ignore[misc]
        self._store = store

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        loaded = await self.way.run(self.due, self._store.load, keys)
        self.way.replies += 1
        return loaded, self._store.clock()

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        lost: Collection[str] = await self.way.run(self.due, self._store.swap, writes)
        return lost


class ByteStore(CallStore):
    """A store of bytes. Write ``load`` and ``swap``; this class decides, corrects, and keeps records.

    Requests of one process that wait for a key are decided together. Event loops call ``load`` and ``swap`` in threads.

    Args:
        timeout_us: The time budget of a call in microseconds.

    Attributes:
        is_atomic: Whether ``swap`` writes all or none. Otherwise the writes that were not lost are undone.

    Example:
        ``docs/how-to/extend/your-own-store.md`` has a complete store over SQLite.
    """

    is_atomic: ClassVar[bool] = True
    _most_entries: ClassVar[Mapping[str, int]] = {}
    """The most entries of a window, by the name of its algorithm: each hit writes all of them."""

    clock: Clock = staticmethod(wall_us)
    """Returns the time in microseconds, for calls without a time."""

    def load(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Return the bytes of each key, None for a key without any.

        Args:
            keys: The keys.

        Raises:
            StoreError: The store has failed.
        """
        raise NotImplementedError

    def swap(self, writes: Sequence[Write]) -> Collection[str]:
        """Write each value whose key still has the bytes ``before``, in one atomic step for each key at least.

        Args:
            writes: The values to write, at most one for each key.

        Returns:
            The keys that have other bytes by now. With ``is_atomic``, nothing is written if there is one.

        Raises:
            StoreError: The store has failed. The values may be written or not.
        """
        raise NotImplementedError

    def check(self, limit: Limit) -> None:
        algorithm, most = limit.algorithm, self._most_entries.get(limit.algorithm.name)
        if most and isinstance(algorithm, TieredWindow) and min(limit.limit, algorithm.span) > most:
            is_log = isinstance(algorithm, SlidingWindowLog)
            advice = 'Use algorithm = "tiered-window"' if is_log else "Use a larger precision"
            keeps = f"{algorithm.name} keeps at most {most:,} entries per key on {self._title}"
            raise ConfigError(f"{keeps}; got '{limit.quota}'. {advice}")

    def _begin(self, way: Way, seconds: float) -> TimedCall:
        return _StoreCall(self, way, seconds)
