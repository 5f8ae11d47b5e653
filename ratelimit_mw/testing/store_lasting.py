"""The part of ``StoreCompliance`` about what comes after a request: corrections, forgetting, and the time."""

from __future__ import annotations

from ..algorithms.limit import Limit
from ..clock import SECOND
from ..decision import Charge, Correction, Decision, Hit
from .answers import same
from .handles import Handle
from .suite import CLIENT, COUNTS_REJECTED, DAY, NOW, Spec, StoreSuite, limit_of, look, one

__all__ = ["LastingTests"]


class LastingTests(StoreSuite):
    """Giving back, charging, forgetting; given times, the store's own clock, expiry."""

    def test_giving_back_undoes_a_hit(self, way: str, spec: Spec) -> None:
        """What was consumed can be consumed again at once, and nothing is left that tells the key from a fresh one."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            decision = one(store, limit, NOW, cost=5)
            back = Correction(limit, limit.prefix + CLIENT, 5, Charge(decision.at_us, 5, decision.delay_us))
            same(store.correct([back], NOW), [NOW], "the time of the correction")
            left = look(store, limit)
            same((left.remaining, left.reset_us), (5, 0), "what is left")
            same(one(store, limit, NOW, cost=5).allowed, True, "spending it again")

    def test_giving_back_too_late_gives_nothing(self, way: str, spec: Spec) -> None:
        """What has come back by itself is not there twice."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            first = one(store, limit, NOW, cost=5)
            later = NOW + 120 * SECOND
            same(one(store, limit, later, cost=5).allowed, True, "full again")
            store.correct([Correction(limit, limit.prefix + CLIENT, 5, Charge(first.at_us, 5, first.delay_us))], later)
            same(look(store, limit, later).remaining, 0, "after giving back what was consumed two minutes ago")

    def test_charging_goes_beyond_the_limit_and_is_remembered(self, way: str, spec: Spec) -> None:
        """What is owed is waited for exactly, also past the time that a state usually matters."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            key = limit.prefix + CLIENT
            same(
                store.correct([Correction(limit, key, 40, None), Correction(limit, key, 1, None)], NOW),
                [NOW] * 2,
                "times",
            )
            (rejected,) = store.apply([Hit(limit, key, 1)], NOW, consume=False)
            same((rejected.allowed, rejected.remaining), (False, 0), "41 of 5")
            at = NOW + (rejected.retry_us or 0)
            (early,) = store.apply([Hit(limit, key, 1)], at - 1, consume=False)
            same(early.allowed, False, "one microsecond before retry_us")
            same(one(store, limit, at).allowed, True, "at retry_us")

    def test_forgetting_makes_fresh(self, way: str, spec: Spec) -> None:
        """The keys named, and no others; a key that nobody has is no mistake."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            for client in "abc":
                one(store, limit, NOW, 5, client)
            store.forget([limit.prefix + client for client in ("a", "c", "unheard of")])
            left = [one(store, limit, NOW, 0, client).remaining for client in "abc"]
            same(left, [5, 0, 5], "what is left of a, b, c after forgetting a and c")
            store.forget(limit.prefix + client for client in "b")
            same(one(store, limit, NOW, 5, "b").allowed, True, "b after it was forgotten too")

    def test_a_clock_that_goes_back_locks_for_its_jump(self, way: str, spec: Spec) -> None:
        """A time before the key's last one counts as that one; durations are told from the caller's."""
        limit = limit_of("5/minute", spec)
        back = 45 * SECOND if self.goes_back([spec]) else 0
        with self.opened(way) as store:
            one(store, limit, NOW, cost=5)
            (now,) = store.apply([Hit(limit, limit.prefix + CLIENT, 5)], NOW, consume=False)
            (then,) = store.apply([Hit(limit, limit.prefix + CLIENT, 5)], NOW - back, consume=False)
            same((then.allowed, then.remaining), (False, 0), "rejected at the earlier time too")
            same(then.retry_us, (now.retry_us or 0) + back, "when to come again")

    def test_a_given_time_rules(self, way: str) -> None:
        """Whatever the store's own clock says: long ago and far ahead, a state is where it was left."""
        for now in (1_000_000 * SECOND, NOW, 4_102_444_800 * SECOND):
            limits = [limit_of("2/20ms", spec) for spec in self.algorithms]
            with self.opened(way) as store:
                for limit in limits:
                    one(store, limit, now, cost=2)
                self.wait(0.05)
                rejected = [one(store, limit, now).allowed for limit in limits]
                same(rejected, [False] * len(limits), f"at {now} again, whatever has passed")
                later = [one(store, limit, now + 2 * DAY, cost=2).allowed for limit in limits]
                same(later, [True] * len(limits), "two days on")

    def test_nothing_is_forgotten_early(self, way: str) -> None:
        """By the store's own clock: a rejected client is let in when it was told, and not before."""
        limits = [limit_of("2/300ms", spec) for spec in self.algorithms if spec != COUNTS_REJECTED]
        with self.opened(way) as store:
            due = {}
            for limit in limits:
                rejected = _consumed(store, limit)
                same(rejected.allowed, False, f"{limit}: right after it was consumed")
                due[limit] = rejected.at_us + (rejected.retry_us or 0)
            for _ in range(200):
                self.wait(0.01)
                for limit, let_in_at in _let_in(store, list(due)).items():
                    same(let_in_at >= due.pop(limit), True, f"{limit}: let in at {let_in_at}")
                if not due:
                    break
            same(list(due), [], "limits that never let in again")

    def test_long_periods_are_kept(self, way: str, spec: Spec) -> None:
        """A key whose period is longer than a month is there after it was written."""
        with self.opened(way) as store:
            for quota in ("1/29d", "1/31d", "1/366d"):
                limit = limit_of(quota, spec)
                same(one(store, limit, None).allowed, True, f"the first of {quota}")
                same(one(store, limit, None).allowed, False, f"the second of {quota}")

    def test_corrections_have_the_time_of_the_store(self, way: str) -> None:
        """Without a given time, what is charged is charged at the store's own, where later hits see it."""
        limit = limit_of("5/day", "sliding-window-log")
        with self.opened(way) as store:
            before = one(store, limit, None).at_us
            (at,) = store.correct([Correction(limit, limit.prefix + CLIENT, 4, None)])
            after = one(store, limit, None)
            same((after.allowed, after.remaining), (False, 0), "1 + 4 of 5")
            same(before <= at <= after.at_us, True, f"{before} <= {at} <= {after.at_us}")

    def test_closing_twice_is_harmless(self, way: str) -> None:
        """Frameworks do."""
        with self.opened(way) as store:
            same(one(store, limit_of("1/minute"), NOW).allowed, True, "a store that works")
            store.close_store()
            store.close_store()


def _consumed(store: Handle, limit: Limit) -> Decision:
    """The rejection after all was used, unless the store forgets it at once; again where a window ended in between."""
    decision = one(store, limit, None, cost=2)
    for _ in range(5):
        if decision.allowed:
            decision = one(store, limit, None, cost=2)
    return decision


def _let_in(store: Handle, limits: list[Limit]) -> dict[Limit, int]:
    """The limits that would allow 2 now, and when that is."""
    looks = {limit: store.apply([Hit(limit, limit.prefix + CLIENT, 2)], None, consume=False)[0] for limit in limits}
    return {limit: decision.at_us for limit, decision in looks.items() if decision.allowed}
