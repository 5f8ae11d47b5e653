"""``StartingStore``: the first link of the chain, until the store of this process is open.

A connection takes several round trips, and LMDB may have to wait for the disk. Either would use up the time
budget of the first requests, which would then be decided without the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ...clock import monotonic
from ...decision import Decision, Hit
from ...errors import RateLimitError
from ...forksafe import create_lock, run_in_child
from ...stores import Store
from ...stores.blocking import Call, async_call, blocking_call, run_blocking
from ...stores.per_loop import PerLoop
from .link import ChainLink

if TYPE_CHECKING:
    from ..overrides.reader import OverrideReader


class StartingStore(ChainLink):
    """Opens ``target`` before the first decision of a process, outside the time budget, and leaves the chain.

    ``use`` sets the first link of the chain: to this one in a forked child, and to the next one once the store is open
    or could not be opened. If it could not be opened, the first decision raises the error. ``reader`` reads the
    overrides of an open store before the first decision.
    """

    def __init__(
        self, store: Store, target: Store, use: Callable[[Store], None], reader: OverrideReader | None
    ) -> None:
        super().__init__(store)
        self._target = target
        self._use = use
        self._reader = reader
        self.is_open = False
        self._lock = create_lock(self, "_lock", threading.Lock)
        self._turns = PerLoop(asyncio.Lock)
        run_in_child(self, StartingStore._return)
        use(self)

    def start(self) -> None:
        """Open the store. If it is open, read the overrides again when that is due."""
        with self._lock:
            run_blocking(self._start(blocking_call))

    async def astart(self) -> None:
        async with self._turns.get():
            await self._start(async_call)

    async def _start(self, call: Call) -> None:
        with suppress(RateLimitError):
            if not self.is_open:
                await call(self._target, "start")
            if self._reader is not None and monotonic() >= self._reader.due_at:
                await call(self._reader, "read")
        if not self.is_open:
            self.is_open = True
            self._use(self.store)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self.start()
        return self.store.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        await self.astart()
        return await self.store.aapply(hits, now, consume)

    def _return(self) -> None:
        self.is_open = False
        self._turns.values.clear()
        self._use(self)
