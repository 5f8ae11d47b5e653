"""Several processes that hit one key of a store concurrently."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

from redis_handles import hit

from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.stores import open_store


def race(url: str, limit: Limit, tries: int, start: Any, passed: Any) -> None:
    """Run half of the tries of one process blocking, and half concurrently on an event loop."""
    store = open_store(url, 10_000_000)
    start.wait()
    mine = sum(store.apply([hit(limit)])[0].allowed for _ in range(tries // 2))

    async def on_a_loop() -> int:
        found = 0
        for _ in range(tries // 2 // 250):
            verdicts = await asyncio.gather(*(store.aapply([hit(limit)]) for _ in range(250)))
            found += sum(answer[0].allowed for answer in verdicts)
        await store.aclose()
        return found

    passed.put(mine + asyncio.run(on_a_loop()))


def raced(url: str, limit: Limit, tries: int = 20_000, processes: int = 4) -> int:
    """Return how many of the tries passed."""
    context = multiprocessing.get_context("fork")
    start, passed = context.Event(), context.Queue()
    workers = [
        context.Process(target=race, args=(url, limit, tries // processes, start, passed)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    start.set()
    total = sum(passed.get(timeout=200) for _ in workers)
    for worker in workers:
        worker.join()
    return total
