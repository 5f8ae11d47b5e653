"""Closed loops: each client starts its next request when its last one ends, for a span of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

CLIENTS = 256
SPANS = {1: 0.05, 64: 0.1, 256: 0.2}
"""The seconds of one turn, by the number of requests at a time."""


def repeated(call: Callable[[int], Any]) -> Callable[[], int]:
    """Blocking calls, one after another. A call is given the number of its client."""

    def run() -> int:
        ends = time.perf_counter() + SPANS[1]
        call(0)
        done = 1
        while time.perf_counter() < ends:
            call(done % CLIENTS)
            done += 1
        return done

    return run


def gathered(
    runner: asyncio.Runner, call: Callable[[int], Awaitable[Any]], concurrent: int, seconds: float | None = None
) -> Callable[[], int]:
    """Concurrent clients on an event loop."""
    span = SPANS[concurrent] if seconds is None else seconds

    async def client(i: int, ends: float) -> int:
        await call(i)
        done = 1
        while time.perf_counter() < ends:
            await call(i)
            done += 1
        return done

    async def clients() -> int:
        ends = time.perf_counter() + span
        return sum(await asyncio.gather(*(client(i, ends) for i in range(concurrent))))

    return lambda: runner.run(clients())
