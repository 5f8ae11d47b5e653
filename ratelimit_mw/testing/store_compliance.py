"""`StoreCompliance` checks a store against the contract of `Store`; `StoreSmoke` is its short form."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .comparison import check_equal
from .reference_store import compare_with_reference
from .store_corrections import CorrectionTests
from .store_decisions import DecisionTests
from .store_handles import CLIENT, NOW, AsyncStoreHandle, StoreHandle
from .store_suite import COUNTS_REJECTED, DAY, WAYS, Spec, hits_of, label, limit_of
from .store_time import TimeTests


class StoreCompliance(DecisionTests, CorrectionTests, TimeTests):
    """Check a store against the contract of `Store`, in about 400 tests.

    Subclass it in a pytest module, under a name that starts with ``Test``. Every test runs through the blocking
    methods and through the async methods. Each test closes its stores and uses keys of its own, so the stores may
    share a server that keeps running. Make fixtures that ``make_store`` needs ``autouse``.

    Attributes:
        algorithms: The algorithms to test with. The default is all built-in algorithms.
        keeps_no_time: The algorithms whose keys keep no last time in this store. Their clock does not go back in the
            tests. Name them in the documentation of your store.
        largest_log: The largest amount of a sliding-window-log that the store keeps.

    Example:
        class TestMyStore(StoreCompliance):
            def make_store(self):
                return MyStore()
    """

    def test_decisions_equal_those_of_the_pure_functions(self, way: str, spec: Spec) -> None:
        """Random traces of hits, peeks, corrections and deletions give equal decisions, also when time goes back."""
        quotas = ("5/minute", "200/hour", "3/second", "7/10s")
        with self.opened(way) as store:
            for seed, quota in enumerate(quotas):
                limits = [limit_of(quota, spec), limit_of("9/minute", spec, shadow=seed % 2 == 1)]
                compare_with_reference(store, limits, NOW, 60, seed, self.goes_back([spec]))

    def test_the_largest_numbers_are_exact(self, way: str, spec: Spec) -> None:
        """Amounts reach 10**12, periods 366 days; logs hold ``largest_log`` entries."""
        quotas = ["1000000000000/366d", "200000/day"]
        if label(spec).startswith("sliding-window-log"):
            quotas = [f"{self.largest_log - 1}/366d", f"{self.largest_log}/day"]
        with self.opened(way) as store:
            for seed, quota in enumerate(quotas):
                compare_with_reference(store, [limit_of(quota, spec)], NOW, 40, seed, self.goes_back([spec]))

    def test_one_request_with_all_algorithms(self, way: str) -> None:
        """All or nothing holds across different kinds of state."""
        limits = [limit_of("6/minute", spec) for spec in self.algorithms]
        with self.opened(way) as store:
            for seed in range(3):
                compare_with_reference(store, limits, NOW + seed * DAY, 40, seed, self.goes_back(self.algorithms))

    def test_a_race_on_one_key_is_exact(self, way: str, spec: Spec) -> None:
        """Of 400 requests at the same time exactly the limit of 50 are allowed."""
        limit = limit_of("50/minute", spec)
        with self.opened(way) as store:
            allowed = [d for (d,) in store.together([hits_of(limit)] * 400, NOW) if d.allowed]
            check_equal(len(allowed), 50, "allowed requests")
            check_equal(store.hit(limit).allowed, False, "one more")

    def test_a_race_on_two_keys_is_all_or_nothing(self, way: str, spec: Spec) -> None:
        """An allowed request counts under both keys, a rejected one under neither."""
        wide, narrow = limit_of("100/minute", "sliding-window-log"), limit_of("20/minute", spec)
        with self.opened(way) as store:
            requests = [hits_of(wide, narrow), hits_of(narrow, wide)] * 60
            allowed = sum(all(d.allowed for d in decisions) for decisions in store.together(requests, NOW))
            check_equal(allowed <= 20, True, f"{allowed} allowed by a limit of 20")
            check_equal(store.peek(wide).remaining, 100 - allowed, f"remaining of 100 after {allowed}")
            remaining = store.peek(narrow).remaining
            # With count_rejected, a rejection may be caused by a hit that was refunded afterwards.
            least = 0 if spec == COUNTS_REJECTED else 20 - allowed
            check_equal(least <= remaining <= 20 - allowed, True, f"{remaining} remain of 20 after {allowed}")

    def test_a_race_of_two_handles_is_exact(self, way: str, spec: Spec) -> None:
        """Two workers at the same time allow as many requests as one, without errors."""
        limit = limit_of("100/minute", spec)
        store = self.make_store()
        handles = [WAYS[way](store), WAYS[way](self.make_second(store))]
        try:
            with ThreadPoolExecutor(len(handles)) as pool:
                results = list(pool.map(lambda handle: handle.together([hits_of(limit)] * 100, NOW), handles))
            allowed = [d for decisions in results for (d,) in decisions if d.allowed]
            check_equal(len(allowed), 100, "allowed requests, of 100 by each handle")
            more = [handle.hit(limit).allowed for handle in handles]
            check_equal(more, [False, False], "one more by each handle")
        finally:
            for handle in handles[::-1]:
                handle.close()

    def test_two_handles_share_their_state(self, way: str, spec: Spec) -> None:
        """Each worker sees the counts of the other, through blocking and async methods."""
        limit = limit_of("10/minute", spec)
        store = self.make_store()
        second = self.make_second(store)
        first, *others = handles = [WAYS[way](store), StoreHandle(second), AsyncStoreHandle(second)]
        try:
            remaining = [handle.hit(limit, NOW).remaining for handle in (first, *others, first, *others)]
            check_equal(remaining, [9, 8, 7, 6, 5, 4], "counted by turns")
            others[1].forget([limit.prefix + CLIENT])
            check_equal(first.peek(limit).remaining, 10, "deleted by another handle")
        finally:
            for handle in handles[::-1]:
                handle.close()


class StoreSmoke(StoreCompliance):
    """Run each test of `StoreCompliance` once, in about 30 tests.

    Use it for a small question about a store that passes `StoreCompliance` elsewhere: another server version,
    another topology, a user with few rights. Every second test uses the async methods, and each test uses the next of
    the ``algorithms``.

    Example:
        class TestOldServer(StoreSmoke):
            def make_store(self):
                return MyStore("old-server:1234")
    """

    def pytest_generate_tests(self, metafunc: Any) -> None:
        tests = [name for name in dir(type(self)) if name.startswith("test_")]
        tests.sort(key=lambda name: "spec" not in inspect.signature(getattr(self, name)).parameters)
        turn = tests.index(metafunc.function.__name__)
        metafunc.parametrize("way", [list(WAYS)[turn % len(WAYS)]])
        if "spec" in metafunc.fixturenames:
            metafunc.parametrize("spec", [self.algorithms[turn % len(self.algorithms)]], ids=label)
