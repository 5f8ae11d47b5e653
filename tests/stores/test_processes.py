"""Processes and event loops that share a store: exact counts, and connections of their own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from forked import exit_code
from redis_handles import NOW, PATIENT, hit, limit_of
from store_races import raced

from ratelimit_mw.stores import Store, open_store

pytestmark, THOROUGH = pytest.mark.slow, pytest.mark.thorough
OVER_SERVERS = pytest.mark.parametrize("each_url", ["redis", "cluster", "memcached", "postgres", "lmdb"], indirect=True)
SPECS: list[Any] = [
    ("sliding-window-counter",),
    ("gcra", "fixed-window", "tiered-window"),
    pytest.param(("sliding-window-log",), marks=THOROUGH),
]


@OVER_SERVERS
@pytest.mark.parametrize("specs", SPECS)
def test_four_processes_pass_exactly_the_limit(each_url: str, specs: tuple[str, ...]) -> None:
    """No more, and no fewer: later requests take what lost races refund. Wider limits count the allowed requests."""
    limits = [limit_of(f"{300 + 100 * i}/day", spec) for i, spec in enumerate(specs)]
    assert raced(each_url, limits) == 300
    with closing(open_store(each_url, PATIENT)) as store:
        left = [store.apply([hit(limit, cost=0)], NOW)[0].remaining for limit in limits]
    assert left == [100 * i for i in range(len(limits))]


@OVER_SERVERS
def test_a_forked_worker_has_connections_of_its_own(each_store: Store) -> None:
    """A store that was used before a fork works in both processes, and each reads only its own replies."""
    limit = limit_of("1000/hour")
    assert each_store.apply([hit(limit)])[0].remaining == 999

    def hits(client: str) -> list[int]:
        return [each_store.apply([hit(limit, client)])[0].remaining for _ in range(100)]

    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(exit_code, lambda: hits("child") == list(range(999, 899, -1)))
        assert hits("parent") == list(range(999, 899, -1))
        assert child.result() == 0


@OVER_SERVERS
def test_every_loop_has_connections_of_its_own(each_store: Store) -> None:
    """One store serves several event loops, one after another and at the same time, and blocking calls between them."""
    limit = limit_of("1000/hour")

    async def some() -> int:
        try:
            found = await asyncio.gather(*(each_store.aapply([hit(limit)]) for _ in range(10)))
            return min(decisions[0].remaining for decisions in found)
        finally:
            await each_store.aclose()

    async def several() -> list[int]:
        return list(await asyncio.gather(*(asyncio.to_thread(asyncio.run, some()) for _ in range(4))))

    assert [asyncio.run(some()) for _ in range(2)] == [990, 980]
    assert each_store.apply([hit(limit)])[0].remaining == 979
    assert min(asyncio.run(several())) == 939
