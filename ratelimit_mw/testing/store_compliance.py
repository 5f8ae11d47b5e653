"""`StoreCompliance` checks a store against the contract of `Store`; `StoreSmoke` is its short form."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..clock import SECOND
from ..decision import Hit
from ..receipt import Correction
from .comparison import check_equal
from .reference_store import compare_with_reference
from .store_handles import CLIENT, NOW
from .store_keys import KeyTests
from .store_records import RecordTests
from .store_suite import COUNTS_REJECTED, DAY, WAYS, Spec, hits_of, label, limit_of, limits_with_ban
from .store_time import TimeTests


class StoreCompliance(KeyTests, RecordTests, TimeTests):
    """Check a store against the contract of `Store`, in about 230 tests.

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

    def test_allows_up_to_the_limit_and_reports_what_remains(self, way: str) -> None:
        """Five hits of 5/minute are allowed, the sixth is rejected, and at its retry time it is allowed."""
        limit = limit_of("5/minute")
        with self._open(way) as store:
            decisions = [store.hit(limit, NOW + i) for i in range(6)]
            check_equal([d.allowed for d in decisions], [True] * 5 + [False], "six hits on 5/minute")
            check_equal([d.remaining for d in decisions], [4, 3, 2, 1, 0, 0], "remaining")
            check_equal([d.source for d in decisions], [limit] * 6, "the limit of each decision")
            at = NOW + 5 + (decisions[-1].retry_us or 0)
            check_equal(store.hit(limit, at - 1).allowed, False, "one microsecond before retry_us")
            check_equal(store.hit(limit, at).allowed, True, "at retry_us")

    def test_all_or_nothing(self, way: str, spec: Spec) -> None:
        """A rejection by one limit consumes nothing from the others, in any order; the others report a peek."""
        wide, narrow = limit_of("10/minute", spec), limit_of("1/minute")
        with self._open(way) as store:
            check_equal([d.remaining for d in store.apply(hits_of(wide, narrow), NOW)], [9, 0], "the first request")
            for limits in ((wide, narrow), (narrow, wide)):
                by_limit = {d.source: d for d in store.apply(hits_of(*limits), NOW)}
                check_equal(by_limit[narrow].allowed, False, "the narrow limit")
                check_equal((by_limit[wide].allowed, by_limit[wide].remaining), (True, 9), "the wide limit")
            check_equal(store.peek(wide).remaining, 9, "the wide limit in the end")

    def test_decisions_equal_those_of_the_pure_functions(self, way: str, spec: Spec) -> None:
        """Random traces give equal decisions, even when time goes back.

        A trace mixes hits, peeks, costs of zero, charges, refunds and deleted keys. Every second trace has a shadow
        limit.
        """
        quotas = ("5/minute", "200/hour", "3/second", "7/10s")
        with self._open(way) as store:
            for seed, quota in enumerate(quotas):
                limits = [limit_of(quota, spec), limit_of("9/minute", spec, shadow=seed % 2 == 1)]
                compare_with_reference(store, limits, NOW, 60, seed, self._keeps_time_of([spec]))

    def test_the_largest_numbers_are_exact(self, way: str, spec: Spec) -> None:
        """Amounts reach 10**12, periods 366 days; logs hold ``largest_log`` entries."""
        quotas = ["1000000000000/366d", "200000/day"]
        if label(spec).startswith("sliding-window-log"):
            quotas = [f"{self.largest_log - 1}/366d", f"{self.largest_log}/day"]
        with self._open(way) as store:
            for seed, quota in enumerate(quotas):
                compare_with_reference(store, [limit_of(quota, spec)], NOW, 40, seed, self._keeps_time_of([spec]))

    def test_one_request_with_all_algorithms(self, way: str) -> None:
        """All or nothing holds across different kinds of state."""
        limits = [limit_of("6/minute", spec) for spec in self.algorithms]
        with self._open(way) as store:
            for seed in range(3):
                compare_with_reference(store, limits, NOW + seed * DAY, 40, seed, self._keeps_time_of(self.algorithms))

    def test_a_ban_counts_the_rejections_of_its_rule(self, way: str, spec: Spec) -> None:
        """Each rejection counts once, in the same step as the decision. A banned client consumes nothing.

        The keys of a rule and its ban have one hash tag, ``{...}``, in front of which they differ.
        """
        clients = ("{ip=192.0.2.7}", "{ip=192.0.2.8}")
        with self._open(way) as store:
            for seed in range(4):
                limits = limits_with_ban(spec, after=1 + seed, shadow=seed == 2)
                compare_with_reference(store, limits, NOW, 60, seed, self._keeps_time_of([spec]), clients)

    def test_bans_grow_and_can_be_set(self, way: str) -> None:
        """A rejection during a ban is not counted. Each ban is longer, up to the longest one."""
        ban = limits_with_ban("fixed-window", after=1)[0]
        rejection = Correction(ban, ban.prefix + CLIENT, 1, None)
        now = NOW
        with self._open(way) as store:
            for seconds in (120, 240, 480, 960, 1000, 1000):
                store.correct([rejection, rejection], now)
                check_equal(store.hit(ban, now).retry_us, seconds * SECOND, f"the ban of {seconds} seconds")
                now += seconds * SECOND
                check_equal(store.hit(ban, now).allowed, True, f"allowed after {seconds} seconds")
            for seconds in (60, 30):
                store.correct([rejection._replace(limit=ban.lasting(seconds * SECOND))], now)
                check_equal(store.hit(ban, now).retry_us, seconds * SECOND, f"a ban set to {seconds} seconds")
            store.forget([rejection.key])
            check_equal(store.hit(ban, now).allowed, True, "allowed after forget")

    def test_a_refund_from_before_a_reset_is_void(self, way: str, spec: Spec) -> None:
        """A charge belongs to the state that counted it, and not to the state that began after a reset."""
        limit, later = limit_of("50/hour", spec), NOW + 61 * SECOND
        key = limit.prefix + CLIENT
        with self._open(way) as store:
            refunds = [Correction.refund(store.hit(limit, now, cost=20)) for now in (NOW, NOW + 1)]
            store.forget([key])
            store.hit(limit, later, cost=50)
            store.correct(refunds, later)
            check_equal(store.peek(limit, later).remaining, 0, "remaining after the refunds")
            store.forget([key])
            store.correct([Correction(limit, key, 20, None), *refunds], later)
            check_equal(
                store.peek(limit, later).remaining, 30, "remaining after a charge, which counts, and the refunds"
            )

    def test_a_changed_amount_keeps_what_was_consumed(self, way: str, spec: Spec) -> None:
        """A limit with another amount and the same period continues with the same key."""
        wide, narrow = (limit_of(f"{amount}/minute", spec) for amount in (10, 8))
        with self._open(way) as store:
            store.apply([Hit(wide, wide.prefix + CLIENT, 6)], NOW)
            (decision,) = store.apply([Hit(narrow, wide.prefix + CLIENT, 0)], NOW)
            check_equal((store.peek(wide).remaining, decision.remaining), (4, 2), "6 of 10, and of 8")

    def test_empty_calls_and_pings_count_nothing(self, way: str) -> None:
        """Every method accepts an empty list, and a store that works answers a ping without an error."""
        limit = limit_of("5/minute")
        with self._open(way) as store:
            store.hit(limit)
            check_equal([store.apply([], NOW), store.correct([], NOW)], [[], []], "no hits and no corrections")
            store.forget([])
            store.ping()
            check_equal(store.peek(limit).remaining, 4, "remaining after empty calls and a ping")

    def test_a_race_on_two_keys_is_all_or_nothing(self, way: str, spec: Spec) -> None:
        """An allowed request counts under both keys, a rejected one under neither."""
        wide, narrow = limit_of("100/minute", "sliding-window-log"), limit_of("20/minute", spec)
        with self._open(way) as store:
            requests = [hits_of(wide, narrow), hits_of(narrow, wide)] * 60
            allowed = sum(all(d.allowed for d in decisions) for decisions in store.together(requests, NOW))
            check_equal(allowed <= 20, True, f"{allowed} allowed by a limit of 20")
            check_equal(store.peek(wide).remaining, 100 - allowed, f"remaining of 100 after {allowed}")
            remaining = store.peek(narrow).remaining
            # With count_rejected, a rejection may be caused by a hit that was refunded afterwards.
            least = 0 if spec == COUNTS_REJECTED else 20 - allowed
            check_equal(least <= remaining <= 20 - allowed, True, f"{remaining} remain of 20 after {allowed}")

    def test_a_race_of_two_handles_is_exact(self, way: str, spec: Spec) -> None:
        """Two workers at the same time allow exactly the limit of 100 of their 400 requests, without errors."""
        limit = limit_of("100/minute", spec)
        with self._open_two(way, way) as handles, ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda handle: handle.together([hits_of(limit)] * 200, NOW), handles))
            allowed = [d for decisions in results for (d,) in decisions if d.allowed]
            check_equal(len(allowed), 100, "allowed requests, of 200 by each handle")
            more = [handle.hit(limit).allowed for handle in handles]
            check_equal(more, [False, False], "one more by each handle")

    def test_two_handles_share_their_state(self, way: str, spec: Spec) -> None:
        """Each worker sees the counts of the other, through blocking and async methods."""
        limit = limit_of("10/minute", spec)
        for other in WAYS:
            with self._open_two(way, other) as (first, second):
                remaining = [handle.hit(limit, NOW).remaining for handle in (first, second, first, second)]
                check_equal(remaining, [9, 8, 7, 6], "counted in turns")
                second.forget([limit.prefix + CLIENT])
                check_equal(first.peek(limit).remaining, 10, "deleted by another handle")


class StoreSmoke(StoreCompliance):
    """Run each test of `StoreCompliance` once, in about 25 tests.

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
