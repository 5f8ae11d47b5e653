"""Races of processes for the same keys of a store."""

import asyncio
import multiprocessing
from collections.abc import Callable
from typing import Any

from memcached_handles import NOW, PATIENT, hit

from ratelimit_mw.decision import Limit
from ratelimit_mw.stores import open_store

FORK = multiprocessing.get_context("fork")
HITS = 600
TOGETHER = 50  # requests at a time on an event loop


def count(place: str, limits: list[Limit], way: str, hits: int, results: Any) -> None:
    """Count the allowed requests of one process, each with all limits."""
    store = open_store(place, PATIENT)
    request = [hit(limit) for limit in limits]

    async def awaiting() -> int:
        passed = 0
        for _ in range(hits // TOGETHER):
            found = await asyncio.gather(*(store.aapply(request, NOW) for _ in range(TOGETHER)))
            passed += sum(all(d.allowed for d in decisions) for decisions in found)
        await store.aclose()
        return passed

    if way == "async":
        results.put(asyncio.run(awaiting()))
        return
    results.put(sum(all(d.allowed for d in store.apply(request, NOW)) for _ in range(hits)))
    store.close()


def raced(place: str, limits: list[Limit], hits: int = HITS) -> int:
    """Count the allowed requests of four processes, two of them on event loops."""
    return sum(in_processes(count, *((place, limits, way, hits) for way in ("sync", "async", "sync", "async"))))


def in_processes(work: Callable[..., None], *arguments: tuple[Any, ...]) -> list[Any]:
    """Return what each process puts into a queue, its last argument. There is a process for each of the arguments."""
    results: Any = FORK.Queue()
    workers = [FORK.Process(target=work, args=(*each, results)) for each in arguments]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=200) for _ in workers]
    for worker in workers:
        worker.join()
    return found
