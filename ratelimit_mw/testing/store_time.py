"""The part of `StoreCompliance` about time: given times, the store's own clock, expiry, and the end of a store."""

from ..algorithms.limit import Limit
from ..clock import SECOND
from ..decision import Decision
from ..receipt import Correction
from .comparison import check_equal
from .store_handles import CLIENT, NOW, StoreHandle
from .store_suite import COUNTS_REJECTED, DAY, Spec, StoreSuite, limit_of


class TimeTests(StoreSuite):
    """Tests of times, expiry and ``close``."""

    def test_a_charge_beyond_the_limit_is_kept(self, way: str, spec: Spec) -> None:
        """The wait is exact, even when it is longer than the usual lifetime of a state."""
        limit = limit_of("5/minute", spec)
        key = limit.prefix + CLIENT
        with self._open(way) as store:
            charges = [Correction(limit, key, 40, None), Correction(limit, key, 1, None)]
            check_equal(store.correct(charges, NOW), [NOW] * 2, "times")
            rejected = store.peek(limit, NOW, cost=1)
            check_equal((rejected.allowed, rejected.remaining), (False, 0), "41 of 5")
            at = NOW + (rejected.retry_us or 0)
            check_equal(store.peek(limit, at - 1, cost=1).allowed, False, "one microsecond before retry_us")
            check_equal(store.hit(limit, at).allowed, True, "at retry_us")

    def test_a_given_time_overrides_the_clock_of_the_store(self, way: str) -> None:
        """A time long ago or far ahead decides alone, however much real time passes."""
        for now in (1_000_000 * SECOND, NOW, 4_102_444_800 * SECOND):
            limits = [limit_of("2/20ms", spec) for spec in self.algorithms]
            with self._open(way) as store:
                for limit in limits:
                    store.hit(limit, now, cost=2)
                self.wait(0.05)
                again = [store.hit(limit, now).allowed for limit in limits]
                check_equal(again, [False] * len(limits), f"at {now} again, after 50 ms of real time")
                later = [store.hit(limit, now + 2 * DAY, cost=2).allowed for limit in limits]
                check_equal(later, [True] * len(limits), "two days on")

    def test_no_key_expires_early(self, way: str) -> None:
        """On the store's own clock a rejected client is allowed at its retry time, and not before."""
        limits = [limit_of("2/300ms", spec) for spec in self.algorithms if spec != COUNTS_REJECTED]
        with self._open(way) as store:
            due = {}
            for limit in limits:
                rejected = _exhaust(store, limit)
                check_equal(rejected.allowed, False, f"{limit}: right after it was exhausted")
                due[limit] = rejected.at_us + (rejected.retry_us or 0)
            for _ in range(200):
                self.wait(0.01)
                for limit, allowed_at in _peek_allowed(store, list(due)).items():
                    check_equal(allowed_at >= due.pop(limit), True, f"{limit}: allowed at {allowed_at}")
                if not due:
                    break
            check_equal(list(due), [], "limits that never allowed a request again")

    def test_long_periods_are_kept(self, way: str, spec: Spec) -> None:
        """A key with a period longer than a month exists after it was written."""
        with self._open(way) as store:
            for quota in ("1/29d", "1/31d", "1/366d"):
                limit = limit_of(quota, spec)
                check_equal(store.hit(limit, None).allowed, True, f"the first of {quota}")
                check_equal(store.hit(limit, None).allowed, False, f"the second of {quota}")

    def test_corrections_use_the_clock_of_the_store(self, way: str) -> None:
        """A charge without a time is made at the store's own time, and later hits include it."""
        limit = limit_of("5/day", "sliding-window-log")
        with self._open(way) as store:
            before = store.hit(limit, None).at_us
            (at,) = store.correct([Correction(limit, limit.prefix + CLIENT, 4, None)])
            after = store.hit(limit, None)
            check_equal((after.allowed, after.remaining), (False, 0), "1 + 4 of 5")
            check_equal(before <= at <= after.at_us, True, f"{before} <= {at} <= {after.at_us}")

    def test_close_can_be_called_twice(self, way: str) -> None:
        """Some frameworks close an application twice."""
        with self._open(way) as store:
            check_equal(store.hit(limit_of("1/minute")).allowed, True, "a store that works")
            store.close_store()
            store.close_store()


def _exhaust(store: StoreHandle, limit: Limit) -> Decision:
    """Hit a limit until it rejects. Several tries are needed when a window ends in between."""
    decision = store.hit(limit, None, cost=2)
    for _ in range(5):
        if decision.allowed:
            decision = store.hit(limit, None, cost=2)
    return decision


def _peek_allowed(store: StoreHandle, limits: list[Limit]) -> dict[Limit, int]:
    """Return the limits that would allow a cost of 2 now, with the time of that decision."""
    peeks = {limit: store.peek(limit, None, cost=2) for limit in limits}
    return {limit: decision.at_us for limit, decision in peeks.items() if decision.allowed}
