"""The part of `StoreCompliance` about single requests: decisions, all or nothing, peeks, and keys."""

from __future__ import annotations

from ..clock import SECOND
from ..decision import Hit
from ..receipt import Correction
from .comparison import all_values, check_equal
from .store_handles import CLIENT, NOW
from .store_suite import COUNTS_REJECTED, Spec, StoreSuite, hits_of, limit_of

HOSTILE = (
    *("", " ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "a\0b", "a\0", "a\x7fb", "a\x85b", "a\u2028b"),
    *("{a}b", "{a}c", "{}", "{", "a%20b", "a+b", "%", "*", "?", "a|b", "a:b", "a/b", "\\", "'", '"', "-1", "0"),
    *("\r\nset x 0 0 1\r\n1\r\n", "get x", "noreply", "END", "$-1\r\n", "\ud800", "\udfff", "a\ud800", "\udcc3\udca9"),
    *("é", "e\u0301", "É", "日本", "日" * 84, "日" * 85, "😀", "\u0131", "i", "K", "k", "\u212a"),
    *("x" * length for length in (*range(180, 260), 510, 511, 512, 513, 10_000)),
    *("x" * 10_000 + end for end in ("a", "b")),
)


class DecisionTests(StoreSuite):
    """Tests of ``apply``."""

    def test_allows_up_to_the_limit_and_reports_what_remains(self, way: str) -> None:
        """Five hits of 5/minute are allowed, the sixth is rejected, and at its retry time it is allowed."""
        limit = limit_of("5/minute")
        with self.opened(way) as store:
            decisions = [store.hit(limit, NOW + i) for i in range(6)]
            check_equal([d.allowed for d in decisions], [True] * 5 + [False], "six hits on 5/minute")
            check_equal([d.remaining for d in decisions], [4, 3, 2, 1, 0, 0], "remaining")
            check_equal([d.source for d in decisions], [limit] * 6, "the limit of each decision")
            retry = decisions[-1].retry_us or 0
            early = store.hit(limit, NOW + 5 + retry - 1)
            check_equal(early.allowed, False, "one microsecond before retry_us")
            check_equal(store.hit(limit, NOW + 5 + retry).allowed, True, "at retry_us")

    def test_all_or_nothing(self, way: str, spec: Spec) -> None:
        """A rejection by one limit consumes nothing from the others, in any order; the others report a peek."""
        wide, narrow = limit_of("10/minute", spec), limit_of("1/minute")
        with self.opened(way) as store:
            check_equal([d.remaining for d in store.apply(hits_of(wide, narrow), NOW)], [9, 0], "the first request")
            for limits in ((wide, narrow), (narrow, wide)):
                by_limit = {d.source: d for d in store.apply(hits_of(*limits), NOW)}
                check_equal(by_limit[narrow].allowed, False, "the narrow limit")
                check_equal((by_limit[wide].allowed, by_limit[wide].remaining), (True, 9), "the wide limit")
            check_equal(store.peek(wide).remaining, 9, "the wide limit in the end")

    def test_a_rejection_writes_nothing(self, way: str, spec: Spec) -> None:
        """After 20 rejections a limit equals one without rejections."""
        spec = "sliding-window-log" if spec == COUNTS_REJECTED else spec
        limit, other = limit_of("5/minute", spec), limit_of("5/minute", spec)
        with self.opened(way) as store:
            for each in (limit, other):
                store.hit(each, cost=4)
            for i in range(20):
                check_equal(store.hit(limit, NOW + i, cost=2).allowed, False, "4 + 2 of 5")
            for later in (NOW + 20, NOW + 15 * SECOND, NOW + 45 * SECOND):
                rejected, untouched = store.peek(limit, later), store.peek(other, later)
                check_equal(all_values([rejected]), all_values([untouched]), "rejected often, and never")

    def test_a_peek_equals_the_hit_and_consumes_nothing(self, way: str, spec: Spec) -> None:
        """Two peeks and the hit after them give the same decision."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            for cost in (3, 2, 1, 6):
                hits = [Hit(limit, limit.prefix + CLIENT, cost)]
                peeks = [all_values(store.apply(hits, NOW, consume=False)) for _ in range(2)]
                check_equal(peeks, [all_values(store.apply(hits, NOW))] * 2, f"two peeks and the hit, cost {cost}")

    def test_a_cost_of_zero_is_allowed_and_consumes_nothing(self, way: str, spec: Spec) -> None:
        """This holds for a new key and for an exhausted one."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            check_equal(store.hit(limit, cost=0).remaining, 5, "a new key")
            store.hit(limit, cost=5)
            peeks = [store.hit(limit, NOW + 1, cost=0) for _ in range(3)]
            check_equal([(d.allowed, d.remaining) for d in peeks], [(True, 0)] * 3, "an exhausted key")

    def test_a_shadow_limit_never_rejects(self, way: str, spec: Spec) -> None:
        """A rejection by a shadow limit is reported and not counted; the other limits are consumed."""
        shadow, real = limit_of("1/minute", spec, shadow=True), limit_of("3/minute")
        with self.opened(way) as store:
            decisions = [store.apply(hits_of(shadow, real), NOW) for _ in range(4)]
            check_equal([d[0].allowed for d in decisions], [True, False, False, False], "the shadow limit")
            check_equal([d[1].remaining for d in decisions], [2, 1, 0, 0], "the real limit")
            check_equal(decisions[3][1].allowed, False, "the fourth, which the real limit rejects")
            check_equal(store.peek(shadow).remaining, 0, "the shadow limit counted its allowed request")

    def test_count_rejected_counts_its_own_rejections_only(self, way: str) -> None:
        """Its rejections prolong the wait. Rejections by another limit and peeks do not."""
        spec = COUNTS_REJECTED if COUNTS_REJECTED in self.algorithms else self.algorithms[0]
        log, full = limit_of("2/minute", spec), limit_of("1/minute")
        with self.opened(way) as store:
            store.hit(full, NOW)
            decisions = store.apply(hits_of(log, full), NOW)
            check_equal([d.allowed for d in decisions], [True, False], "rejected by the other limit")
            check_equal(store.peek(log).remaining, 2, "the log after a rejection by the other limit")
            check_equal(store.hit(log, cost=2).allowed, True, "filled")
            check_equal(store.hit(log, NOW + 30 * SECOND).allowed, False, "a rejection of its own")
            store.apply(hits_of(log), NOW + 40 * SECOND, consume=False)
            if spec == COUNTS_REJECTED:
                check_equal(store.peek(log, NOW + 61 * SECOND).remaining, 1, "the rejection still counts")
                check_equal(store.peek(log, NOW + 90 * SECOND).remaining, 2, "a minute later; a peek is free")

    def test_no_hits_give_no_decisions(self, way: str) -> None:
        """Every method accepts an empty list."""
        with self.opened(way) as store:
            check_equal(store.apply([], NOW), [], "apply")
            check_equal(store.correct([], NOW), [], "correct")
            store.forget([])

    def test_a_ping_succeeds_and_counts_nothing(self, way: str) -> None:
        """A store that works answers a ping without an error."""
        limit = limit_of("5/minute")
        with self.opened(way) as store:
            store.hit(limit, NOW)
            store.ping()
            check_equal(store.peek(limit).remaining, 4, "remaining after a ping")

    def test_a_changed_amount_keeps_what_was_consumed(self, way: str, spec: Spec) -> None:
        """A limit with another amount and the same period continues with the same key."""
        wide, narrow = (limit_of(f"{amount}/minute", spec) for amount in (10, 8))
        with self.opened(way) as store:
            store.apply([Hit(wide, wide.prefix + CLIENT, 6)], NOW)
            (decision,) = store.apply([Hit(narrow, wide.prefix + CLIENT, 0)], NOW)
            check_equal((store.peek(wide).remaining, decision.remaining), (4, 2), "6 of 10, and of 8")

    def test_hostile_keys_are_distinct(self, way: str, spec: Spec) -> None:
        """Any two texts are two keys: spaces, newlines, NUL, braces, any length."""
        limit = limit_of("1/minute", spec)
        with self.opened(way) as store:
            shared = [text for text in HOSTILE if not store.hit(limit, client=text).allowed]
            check_equal(shared, [], "keys that shared a count with an earlier key")
            lost = [text for text in HOSTILE if store.hit(limit, client=text).allowed]
            check_equal(lost, [], "keys that lost their count")

    def test_hostile_keys_can_be_corrected_and_forgotten(self, way: str) -> None:
        """``correct`` and ``forget`` address the same key as ``apply``."""
        limit = limit_of("2/minute")
        keys = [limit.prefix + text for text in HOSTILE]
        with self.opened(way) as store:
            store.correct([Correction(limit, key, 2, None) for key in keys], NOW)
            remaining = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            check_equal(remaining, [0] * len(keys), "charged")
            store.forget(keys)
            remaining = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            check_equal(remaining, [2] * len(keys), "forgotten")

    def test_hostile_rule_names_are_distinct(self, way: str) -> None:
        """The name of a rule can be any text, too."""
        limits = [limit_of("1/minute", rule=name) for name in HOSTILE]
        with self.opened(way) as store:
            shared = [limit.rule for limit in limits if not store.hit(limit).allowed]
            check_equal(shared, [], "rules that shared a count with an earlier rule")
            lost = [limit.rule for limit in limits if store.hit(limit).allowed]
            check_equal(lost, [], "rules that lost their count")
