"""What the parts of ``StoreCompliance`` stand on: the hooks of a subclass, and short ways to ask a store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from ..algorithms.limit import Limit
from ..clock import SECOND
from ..decision import Decision, Hit
from ..quota import Quota
from ..stores import Store
from .handles import AsyncHandle, Handle

__all__ = [
    "CLIENT",
    "COUNTS_REJECTED",
    "DAY",
    "NOW",
    "WAYS",
    "Spec",
    "StoreSuite",
    "hits_of",
    "label",
    "limit_of",
    "look",
    "one",
]

Spec = str | Mapping[str, Any]

NOW = 1_767_268_820 * SECOND + 500_000
DAY = 86_400 * SECOND
CLIENT = "ip=192.0.2.7"
WAYS = {"sync": Handle, "async": AsyncHandle}
COUNTS_REJECTED: Spec = {"name": "sliding-window-log", "count_rejected": True}
_numbers = itertools.count()


class StoreSuite:
    """The hooks, and how a test gets its store."""

    algorithms: ClassVar[Sequence[Spec]] = (
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
    keeps_no_time: ClassVar[Sequence[str]] = ()

    def make_store(self) -> Store:
        """A store. It need not be empty."""
        raise NotImplementedError

    def make_second(self, store: Store) -> Store:
        """Another handle on the state of ``store``, as another worker process has one.

        ``store`` itself where there is none: then its blocking and its awaitable methods are held to share a state.
        """
        return store

    def wait(self, seconds: float) -> None:
        """Let time pass by the store's own clock: really, unless that clock is set by hand."""
        time.sleep(seconds)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Every test is played both ways, and those that name a ``spec`` with every algorithm."""
        metafunc.parametrize("way", list(WAYS))
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize("spec", self.algorithms, ids=label)

    @contextmanager
    def opened(self, way: str) -> Iterator[Handle]:
        """A store of its own for a test."""
        handle = WAYS[way](self.make_store())
        try:
            yield handle
        finally:
            handle.close()

    def goes_back(self, specs: Sequence[Spec]) -> bool:
        """Whether all of these keep their last time in this store."""
        names = [spec if isinstance(spec, str) else spec["name"] for spec in specs]
        return not set(names) & set(self.keeps_no_time)


def label(spec: Spec) -> str:
    """A short name for the output of a test."""
    return spec if isinstance(spec, str) else " ".join(str(value) for value in spec.values())


def limit_of(quota: str, spec: Spec = "fixed-window", shadow: bool = False, rule: str = "") -> Limit:
    """A limit under a rule that nobody else has."""
    return Limit(f"{uuid4().hex[:12]}{next(_numbers)}{rule}", 0, Quota.parse(quota), spec, shadow)


def hits_of(*limits: Limit) -> list[Hit]:
    """The request of one client to all of these limits, with a cost of 1."""
    return [Hit(limit, limit.prefix + CLIENT, 1) for limit in limits]


def one(store: Handle, limit: Limit, now: int | None, cost: int = 1, client: str = CLIENT) -> Decision:
    """A request to one limit."""
    return store.apply([Hit(limit, limit.prefix + client, cost)], now)[0]


def look(store: Handle, limit: Limit, now: int = NOW) -> Decision:
    """What a limit says without being asked for anything."""
    return one(store, limit, now, cost=0)
