"""The parts of `StoreCompliance`: handles of stores, and helpers that build limits.

A handle has the same methods for blocking and asyncio access, so that each test runs through both.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Final
from uuid import uuid4

from ..algorithms import build_limit
from ..clock import SECOND
from ..decision import BanLimit, BanTerms, Decision, Hit, Limit
from ..quota import Quota
from ..stores import Store

Spec = str | Mapping[str, Any]

DAY = 86_400 * SECOND
NOW = 1_767_268_820 * SECOND + 500_000
CLIENT = "ip=192.0.2.7"
_THREADS = 8
COUNTS_REJECTED: Spec = {"name": "sliding-window-log", "count_rejected": True}


class StoreHandle:
    """Calls the blocking methods."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method of the store, such as ``apply``."""
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.store, method)(*arguments)

    def close_store(self) -> None:
        self._call("close")

    def close(self) -> None:
        self.close_store()

    def hit(self, limit: Limit, now: int | None = NOW, cost: int = 1, client: str = CLIENT) -> Decision:
        decisions: list[Decision] = self.apply([Hit(limit, limit.prefix + client, cost)], now)
        return decisions[0]

    def peek(self, limit: Limit, now: int | None = NOW, cost: int = 0) -> Decision:
        """Return the decision about a hit without consuming anything."""
        decisions: list[Decision] = self.apply([Hit(limit, limit.prefix + CLIENT, cost)], now, False)
        return decisions[0]

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Apply all requests at the same time, from several threads."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(lambda hits: self.store.apply(hits, now), requests))


class AsyncStoreHandle(StoreHandle):
    """Calls the async methods on an event loop of its own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._runner = asyncio.Runner()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._runner.run(getattr(self.store, f"a{method}")(*arguments))

    def close(self) -> None:
        super().close()
        self._runner.close()

    def together(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Apply all requests at the same time, as tasks of one event loop."""
        return self._runner.run(self._gather(requests, now))

    async def _gather(self, requests: Sequence[Sequence[Hit]], now: int) -> list[list[Decision]]:
        """Raise the first error only after all tasks have ended, so that the store can be closed."""
        tasks = [asyncio.ensure_future(self.store.aapply(hits, now)) for hits in requests]
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks]


WAYS = {"sync": StoreHandle, "async": AsyncStoreHandle}

ALGORITHMS: Final[Sequence[Spec]] = (
    "fixed-window",
    "sliding-window-log",
    COUNTS_REJECTED,
    "sliding-window-counter",
    "tiered-window",
    "token-bucket",
    {"name": "token-bucket", "refill": "interval"},
    "leaky-bucket",
    {"name": "leaky-bucket", "mode": "queue"},
    "gcra",
)


def store_test(test: Callable[..., None]) -> Callable[[Any, str], None]:
    """Make a test of pytest from one that takes a store, and perhaps a ``spec``: then it runs for each algorithm."""

    takes_spec = "spec" in inspect.signature(test).parameters

    def run(suite: Any, way: str) -> None:
        with closing(WAYS[way](suite.make_store())) as store:
            if not takes_spec:
                test(suite, store)
                return
            for spec in suite.algorithms:
                try:
                    test(suite, store, spec)
                except AssertionError as error:
                    error.add_note(f"with the algorithm {spec}")
                    raise

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def limit_of(quota: str, spec: Spec = "fixed-window", shadow: bool = False, rule: str = "", zone: str = "UTC") -> Limit:
    """Build a limit under a rule name that no other test uses. The zone is that of a calendar."""
    return build_limit(f"{uuid4().hex[:16]}{rule}", 0, Quota.parse(quota).in_zone(zone), spec, shadow)


def limits_with_ban(spec: Spec, after: int, shadow: bool = False) -> tuple[BanLimit, Limit, Limit]:
    """Build a rule of two limits with a ban."""
    first = limit_of("3/minute", spec, shadow)
    second = build_limit(first.rule, 1, Quota.parse("9/10m"), spec, shadow)
    ban = first.ban = second.ban = BanLimit(BanTerms(after, 300 * SECOND, 120 * SECOND, 2, 1000 * SECOND), first)
    return ban, first, second


def hits_of(*limits: Limit) -> list[Hit]:
    """Build one client's request to all these limits, with a cost of 1."""
    return [Hit(limit, limit.prefix + CLIENT, 1) for limit in limits]
