"""The time that a call waits for its server, by the clocks of the store: a busy machine does not change it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ratelimit_mw.stores.redis.store import RedisStore

BUDGET: Final = 0.05
SLACK: Final = 0.02


class Took:
    """What the clock of this thread, or of its running event loop, shows after calls at one time."""

    def __init__(self, store: RedisStore) -> None:
        is_async = asyncio._get_running_loop() is not None
        self._clock: Any = store._loops.get().clock if is_async else store._threads.clock
        self._began = self._clock.now

    def check(self, budget: float = BUDGET) -> None:
        took = self._clock.now - self._began
        assert took <= budget + SLACK / 2, took
