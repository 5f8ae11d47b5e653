"""The part of ``StoreCompliance`` about single requests: what is decided, what is written, under which key."""

from __future__ import annotations

from ..clock import SECOND
from ..decision import Correction, Hit
from .answers import answers, same
from .suite import CLIENT, COUNTS_REJECTED, NOW, Spec, StoreSuite, hits_of, limit_of, look, one

__all__ = ["DecidingTests"]

HOSTILE = (
    *("", " ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "a\0b", "a\0", "a\x7fb", "a\x85b", "a\u2028b"),
    *("{a}b", "{a}c", "{}", "{", "a%20b", "a+b", "%", "*", "?", "a|b", "a:b", "a/b", "\\", "'", '"', "-1", "0"),
    *("\r\nset x 0 0 1\r\n1\r\n", "get x", "noreply", "END", "$-1\r\n", "\ud800", "\udfff", "a\ud800", "\udcc3\udca9"),
    *("é", "e\u0301", "É", "日本", "日" * 84, "日" * 85, "😀", "\u0131", "i", "K", "k", "\u212a"),
    *("x" * length for length in (*range(180, 260), 510, 511, 512, 513, 10_000)),
    *("x" * 10_000 + end for end in ("a", "b")),
)


class DecidingTests(StoreSuite):
    """Decisions, all or nothing, rejections, looks, and keys."""

    def test_counts_to_the_limit_and_says_what_is_left(self, way: str) -> None:
        """The plainest promise: five pass, the sixth is told when it may come again, and then it may."""
        limit = limit_of("5/minute")
        with self.opened(way) as store:
            seen = [one(store, limit, NOW + i) for i in range(6)]
            same([d.allowed for d in seen], [True] * 5 + [False], "six hits on 5/minute")
            same([d.remaining for d in seen], [4, 3, 2, 1, 0, 0], "remaining")
            same([d.source for d in seen], [limit] * 6, "each decision knows its limit")
            retry = seen[-1].retry_us or 0
            same(one(store, limit, NOW + 5 + retry - 1).allowed, False, "one microsecond before retry_us")
            same(one(store, limit, NOW + 5 + retry).allowed, True, "at retry_us")

    def test_all_or_nothing(self, way: str, spec: Spec) -> None:
        """What one limit rejects consumes nothing from the others, whichever comes first; they report a look."""
        wide, narrow = limit_of("10/minute", spec), limit_of("1/minute")
        with self.opened(way) as store:
            same([d.remaining for d in store.apply(hits_of(wide, narrow), NOW)], [9, 0], "the first request")
            for limits in ((wide, narrow), (narrow, wide)):
                by_limit = {d.source: d for d in store.apply(hits_of(*limits), NOW)}
                same(by_limit[narrow].allowed, False, "the narrow limit")
                same((by_limit[wide].allowed, by_limit[wide].remaining), (True, 9), "the wide one is looked at")
            same(look(store, wide).remaining, 9, "the wide limit in the end")

    def test_a_rejection_writes_nothing(self, way: str, spec: Spec) -> None:
        """However often one is rejected, the limit answers as if nobody had asked."""
        spec = "sliding-window-log" if spec == COUNTS_REJECTED else spec
        limit, other = limit_of("5/minute", spec), limit_of("5/minute", spec)
        with self.opened(way) as store:
            for each in (limit, other):
                one(store, each, NOW, cost=4)
            for i in range(20):
                same(one(store, limit, NOW + i, cost=2).allowed, False, "4 + 2 of 5")
            for later in (NOW + 20, NOW + 15 * SECOND, NOW + 45 * SECOND):
                asked, never_asked = look(store, limit, later), look(store, other, later)
                same(answers([asked]), answers([never_asked]), "rejected often, and never")

    def test_a_peek_answers_as_a_hit_would_and_consumes_nothing(self, way: str, spec: Spec) -> None:
        """The same answer twice, then from the hit itself."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            for cost in (3, 2, 1, 6):
                hits = [Hit(limit, limit.prefix + CLIENT, cost)]
                peeks = [answers(store.apply(hits, NOW, consume=False)) for _ in range(2)]
                same(peeks, [answers(store.apply(hits, NOW))] * 2, f"two peeks and the hit, cost {cost}")

    def test_a_cost_of_nothing_is_a_look(self, way: str, spec: Spec) -> None:
        """Always allowed, and changes nothing: not on a fresh key, not on a consumed one."""
        limit = limit_of("5/minute", spec)
        with self.opened(way) as store:
            same(one(store, limit, NOW, cost=0).remaining, 5, "a fresh key")
            one(store, limit, NOW, cost=5)
            looks = [one(store, limit, NOW + 1, cost=0) for _ in range(3)]
            same([(d.allowed, d.remaining) for d in looks], [(True, 0)] * 3, "a consumed key")

    def test_a_shadow_rejects_nobody(self, way: str, spec: Spec) -> None:
        """A rejection of a shadow limit is reported and not counted; the limits beside it are consumed."""
        shadow, real = limit_of("1/minute", spec, shadow=True), limit_of("3/minute")
        with self.opened(way) as store:
            seen = [store.apply(hits_of(shadow, real), NOW) for _ in range(4)]
            same([d[0].allowed for d in seen], [True, False, False, False], "the shadow's own answers")
            same([d[1].remaining for d in seen], [2, 1, 0, 0], "the real limit")
            same(seen[3][1].allowed, False, "the fourth, which the real limit rejects")
            same(look(store, shadow).remaining, 0, "the shadow counted what passed")

    def test_count_rejected_counts_its_own_rejections_only(self, way: str) -> None:
        """Who keeps knocking stays out; what another limit rejected is not held against it; a peek is no knock."""
        spec = COUNTS_REJECTED if COUNTS_REJECTED in self.algorithms else self.algorithms[0]
        log, full = limit_of("2/minute", spec), limit_of("1/minute")
        with self.opened(way) as store:
            one(store, full, NOW)
            same([d.allowed for d in store.apply(hits_of(log, full), NOW)], [True, False], "rejected by the other")
            same(look(store, log).remaining, 2, "the log after what the other rejected")
            same(one(store, log, NOW, cost=2).allowed, True, "filled")
            same(one(store, log, NOW + 30 * SECOND).allowed, False, "a knock")
            store.apply(hits_of(log), NOW + 40 * SECOND, consume=False)
            if spec == COUNTS_REJECTED:
                same(look(store, log, NOW + 61 * SECOND).remaining, 1, "the knock is still counted")
                same(look(store, log, NOW + 90 * SECOND).remaining, 2, "a minute after the knock; a peek is none")

    def test_no_hits_no_decisions(self, way: str) -> None:
        """A request that no limit applies to costs nothing and breaks nothing."""
        with self.opened(way) as store:
            same(store.apply([], NOW), [], "apply")
            same(store.correct([], NOW), [], "correct")
            store.forget([])

    def test_a_ping_is_answered(self, way: str) -> None:
        """A store that works says so, and counts nothing for it."""
        limit = limit_of("5/minute")
        with self.opened(way) as store:
            one(store, limit, NOW)
            store.ping()
            same(look(store, limit).remaining, 4, "what is left after a ping")

    def test_a_changed_amount_keeps_what_was_consumed(self, way: str, spec: Spec) -> None:
        """A limit with another amount and the same period goes on with the same key."""
        wide, narrow = (limit_of(f"{amount}/minute", spec) for amount in (10, 8))
        with self.opened(way) as store:
            store.apply([Hit(wide, wide.prefix + CLIENT, 6)], NOW)
            (decision,) = store.apply([Hit(narrow, wide.prefix + CLIENT, 0)], NOW)
            same((look(store, wide).remaining, decision.remaining), (4, 2), "6 of 10, and of 8")

    def test_hostile_keys_stay_apart(self, way: str, spec: Spec) -> None:
        """Any two texts are two keys, and each is found again: spaces, newlines, NUL, braces, any length."""
        limit = limit_of("1/minute", spec)
        with self.opened(way) as store:
            taken = [text for text in HOSTILE if not one(store, limit, NOW, client=text).allowed]
            same(taken, [], "keys that were taken for one seen before")
            lost = [text for text in HOSTILE if one(store, limit, NOW, client=text).allowed]
            same(lost, [], "keys that were not found again")

    def test_hostile_keys_are_corrected_and_forgotten(self, way: str) -> None:
        """Whatever a key is made of, all that can be done to it is done to the same one."""
        limit = limit_of("2/minute")
        keys = [limit.prefix + text for text in HOSTILE]
        with self.opened(way) as store:
            store.correct([Correction(limit, key, 2, None) for key in keys], NOW)
            left = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            same(left, [0] * len(keys), "charged")
            store.forget(keys)
            left = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            same(left, [2] * len(keys), "forgotten")

    def test_hostile_rule_names_stay_apart(self, way: str) -> None:
        """A rule may be called anything too."""
        limits = [limit_of("1/minute", rule=name) for name in HOSTILE]
        with self.opened(way) as store:
            same([limit.rule for limit in limits if not one(store, limit, NOW).allowed], [], "taken for one before")
            same([limit.rule for limit in limits if one(store, limit, NOW).allowed], [], "not found again")
