"""The part of `StoreCompliance` about changes after a request: refunds, charges, and deleted keys."""

from __future__ import annotations

from ..clock import SECOND
from ..receipt import Charge, Correction
from .comparison import check_equal
from .store_handles import CLIENT, NOW
from .store_suite import Spec, StoreSuite, limit_of


class CorrectionTests(StoreSuite):
    """Tests of ``correct`` and ``forget``."""

    def test_a_refund_undoes_a_hit(self, way: str, spec: Spec) -> None:
        """The refunded cost can be consumed again at once, and the key equals a new one."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            decision = store.hit(limit, cost=5)
            refund = Correction(limit, limit.prefix + CLIENT, 5, Charge(decision.at_us, 5, decision.delay_us))
            check_equal(store.correct([refund], NOW), [NOW], "the time of the correction")
            state = store.peek(limit)
            check_equal((state.remaining, state.reset_us), (5, 0), "remaining")
            check_equal(store.hit(limit, cost=5).allowed, True, "the same hit again")

    def test_a_late_refund_returns_nothing(self, way: str, spec: Spec) -> None:
        """A cost that has been refilled already is not refunded a second time."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            first = store.hit(limit, cost=5)
            later = NOW + 120 * SECOND
            check_equal(store.hit(limit, later, cost=5).allowed, True, "exhausted again")
            charge = Charge(first.at_us, 5, first.delay_us)
            store.correct([Correction(limit, limit.prefix + CLIENT, 5, charge)], later)
            check_equal(store.peek(limit, later).remaining, 0, "after a refund of two minutes ago")

    def test_a_charge_beyond_the_limit_is_kept(self, way: str, spec: Spec) -> None:
        """The wait is exact, also when it is longer than the usual lifetime of a state."""
        limit = limit_of("5/minute", spec)
        key = limit.prefix + CLIENT
        with self.opened(way) as store:
            charges = [Correction(limit, key, 40, None), Correction(limit, key, 1, None)]
            check_equal(store.correct(charges, NOW), [NOW] * 2, "times")
            rejected = store.peek(limit, NOW, cost=1)
            check_equal((rejected.allowed, rejected.remaining), (False, 0), "41 of 5")
            at = NOW + (rejected.retry_us or 0)
            early = store.peek(limit, at - 1, cost=1)
            check_equal(early.allowed, False, "one microsecond before retry_us")
            check_equal(store.hit(limit, at).allowed, True, "at retry_us")

    def test_forget_deletes_the_given_keys_only(self, way: str, spec: Spec) -> None:
        """Other keys keep their count. A key that does not exist is no error."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            for client in "abc":
                store.hit(limit, NOW, 5, client)
            store.forget([limit.prefix + client for client in ("a", "c", "no such client")])
            remaining = [store.hit(limit, NOW, 0, client).remaining for client in "abc"]
            check_equal(remaining, [5, 0, 5], "remaining for a, b, c after a and c were deleted")
            store.forget(limit.prefix + client for client in "b")
            check_equal(store.hit(limit, NOW, 5, "b").allowed, True, "b after it was deleted, too")
