"""``ByteStore``: the base of a store of your own, which loads states as bytes and swaps them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from ..algorithms.window_log import SlidingWindowLog, TieredWindow
from ..clock import Clock, wall_us
from ..decision import Limit
from ..errors import ConfigError
from .bytecall import Write
from .calls import CallStore
from .drivers import Driver
from .timedcall import TimedCall


class StoreCall(TimedCall):
    """A call on a store of bytes, which calls the methods of a store of your own."""

    def __init__(self, store: ByteStore, driver: Driver, seconds: float) -> None:
        super().__init__(driver, seconds)
        self._store = store
        self.title, self.is_atomic = store._title or str(store), store.is_atomic

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        loaded = await self.driver.run(self.deadline, self._store.load, keys)
        self.driver.replies += 1
        return loaded, self._store.clock()

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        lost: Collection[str] = await self.driver.run(self.deadline, self._store.swap, writes)
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
    _call: ClassVar[type[StoreCall]] = StoreCall
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

    def _begin(self, driver: Driver, seconds: float) -> StoreCall:
        return self._call(self, driver, seconds)
