"""The base of `StoreCompliance`: the hooks of a subclass, and helpers that build limits and hit them."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from ..algorithms.ban import BanTerms
from ..algorithms.ban_limit import BanLimit
from ..algorithms.limit import Limit
from ..algorithms.window_log import MAX_LOG
from ..clock import SECOND
from ..decision import Hit
from ..quota import Quota
from ..stores import Store
from .store_handles import CLIENT, AsyncStoreHandle, StoreHandle

Spec = str | Mapping[str, Any]

DAY = 86_400 * SECOND
WAYS = {"sync": StoreHandle, "async": AsyncStoreHandle}
COUNTS_REJECTED: Spec = {"name": "sliding-window-log", "count_rejected": True}
_numbers = itertools.count()


class StoreSuite:
    """The hooks that a subclass overrides."""

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
    largest_log: ClassVar[int] = MAX_LOG

    def make_store(self) -> Store:
        """Return a store. It may contain other keys already."""
        raise NotImplementedError

    def make_second(self, store: Store) -> Store:
        """Return a second handle on the state of a store, as another worker process has one.

        Args:
            store: The store that `make_store` returned.

        Returns:
            A new handle, or ``store`` itself when there can be no other. The suite then checks that the blocking and
            the async methods share one state.
        """
        return store

    def wait(self, seconds: float) -> None:
        """Let time pass on the store's own clock. The default sleeps; override it when that clock is manual.

        Args:
            seconds: How long, in seconds.
        """
        time.sleep(seconds)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run every test with blocking and async methods, and every test with a ``spec`` for each algorithm."""
        metafunc.parametrize("way", list(WAYS))
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize("spec", self.algorithms, ids=label)

    @contextmanager
    def _open(self, way: str) -> Iterator[StoreHandle]:
        """Make a store for one test and close it afterwards."""
        with closing(WAYS[way](self.make_store())) as handle:
            yield handle

    @contextmanager
    def _open_two(self, way: str, other: str) -> Iterator[tuple[StoreHandle, StoreHandle]]:
        """Make two handles on one state and close them afterwards, the second one first."""
        store = self.make_store()
        with closing(WAYS[way](store)) as first, closing(WAYS[other](self.make_second(store))) as second:
            yield first, second

    def _keeps_time_of(self, specs: Sequence[Spec]) -> bool:
        """Return whether this store keeps the last time of all these algorithms, so that its clock may go back."""
        names = [spec if isinstance(spec, str) else spec["name"] for spec in specs]
        return not set(names) & set(self.keeps_no_time)


def label(spec: Spec) -> str:
    """Return a short name for a test ID."""
    return spec if isinstance(spec, str) else " ".join(str(value) for value in spec.values())


def limit_of(quota: str, spec: Spec = "fixed-window", shadow: bool = False, rule: str = "") -> Limit:
    """Build a limit under a rule name that no other test uses."""
    return Limit(f"{uuid4().hex[:12]}{next(_numbers)}{rule}", 0, Quota.parse(quota), spec, shadow)


def limits_with_ban(spec: Spec, after: int, shadow: bool = False) -> tuple[BanLimit, Limit, Limit]:
    """Build a rule of two limits with a ban."""
    first = limit_of("3/minute", spec, shadow)
    second = Limit(first.rule, 1, Quota.parse("9/10m"), spec, shadow)
    ban = first.ban = second.ban = BanLimit(BanTerms(after, 300 * SECOND, 120 * SECOND, 2, 1000 * SECOND), first)
    return ban, first, second


def hits_of(*limits: Limit) -> list[Hit]:
    """Build one client's request to all these limits, with a cost of 1."""
    return [Hit(limit, limit.prefix + CLIENT, 1) for limit in limits]
