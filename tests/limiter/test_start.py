"""A store is opened when a worker starts, outside the time budget of its first requests."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from forked import become_child
from lifespan import run_lifespan
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule, StoreError
from ratelimit_mw.asgi import RateLimitMiddleware

CLIENT = {"ip": "192.0.2.7"}


class SlowToOpen(SharedStore):
    """Counts the starts. A decision before the end of the first one is an error."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.starts = 0
        self.is_open = fails
        self.fails = fails

    def start(self) -> None:
        self.starts += 1
        if self.fails:
            raise StoreError("it is away")
        threading.Event().wait(0.05)
        self.is_open = True

    async def astart(self) -> None:
        await asyncio.sleep(0.01)
        self.start()

    def count_call(self) -> None:
        super().count_call()
        assert self.is_open


def limiter_on(store: SlowToOpen) -> Limiter:
    return Limiter([Rule(name="api", limits="100/minute")], store)


def hit_from_threads(limiter: Limiter) -> list[bool]:
    with ThreadPoolExecutor(8) as pool:
        return [verdict.allowed for verdict in pool.map(limiter.hit, [CLIENT] * 8)]


def hit_on_a_loop(limiter: Limiter) -> list[bool]:
    async def hit() -> list[bool]:
        return [verdict.allowed for verdict in await asyncio.gather(*(limiter.ahit(CLIENT) for _ in range(8)))]

    return asyncio.run(hit())


@pytest.mark.parametrize("hit_together", [hit_from_threads, hit_on_a_loop])
@pytest.mark.parametrize("fails", [False, True])
def test_first_decisions_of_a_process_open_the_store_once(
    hit_together: Callable[[Limiter], list[bool]], fails: bool
) -> None:
    """All wait for the first start. If the store cannot be opened, the decisions call it."""
    store = SlowToOpen(fails)
    limiter = limiter_on(store)
    assert store.starts == 0, "an import does not wait for a store"
    for _ in range(2):
        assert hit_together(limiter) == [True] * 8
    assert (store.starts, store.calls > 1) == (1, True)


def test_limiter_starts_once() -> None:
    """A server, a first decision, or both may start it, and a thread that has found the store closed before."""
    store = SlowToOpen()
    limiter = limiter_on(store)
    assert limiter.remote is not None
    for owner in (limiter, limiter, limiter.remote):
        owner.start()
        asyncio.run(owner.astart())
    assert limiter.hit(CLIENT).allowed
    assert store.starts == 1
    Limiter([Rule(name="api", limits="100/minute")]).start()


def test_asgi_server_opens_the_store_before_it_serves() -> None:
    """The store is open when the server hears that the application has started."""
    store = SlowToOpen()
    sent: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})

    async def between() -> None:
        assert store.is_open

    asyncio.run(run_lifespan(RateLimitMiddleware(app, limiter=limiter_on(store)), sent, between))
    assert (sent, store.starts) == (["lifespan.startup.complete", "lifespan.shutdown.complete"], 1)


def test_forked_worker_opens_its_own() -> None:
    """The connections of the parent are not those of the child."""
    store = SlowToOpen()
    limiter = limiter_on(store)
    for starts in (1, 2):
        assert limiter.hit(CLIENT).allowed
        assert hit_on_a_loop(limiter) == [True] * 8
        assert store.starts == starts
        become_child()
