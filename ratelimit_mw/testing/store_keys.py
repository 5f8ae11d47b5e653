"""The part of `StoreCompliance` about keys: any text that a client sends is a key of its own."""

from ..decision import Hit
from ..receipt import Correction
from .comparison import check_equal
from .store_handles import NOW
from .store_suite import Spec, StoreSuite, limit_of

HOSTILE = (
    *("", " ", "a", "A", "a ", " a", "a b", "a\tb", "a\nb", "a\r\nb", "a\0b", "a\0", "a\x7fb", "a\x85b", "a\u2028b"),
    *("{a}b", "{a}c", "{}", "{", "a%20b", "a+b", "%", "*", "?", "a|b", "a:b", "a/b", "\\", "'", '"', "-1", "0"),
    *("\r\nset x 0 0 1\r\n1\r\n", "get x", "noreply", "END", "$-1\r\n", "\ud800", "\udfff", "a\ud800", "\udcc3\udca9"),
    *("é", "e\u0301", "É", "日本", "日" * 84, "日" * 85, "😀", "\u0131", "i", "K", "k", "\u212a"),
    *("x" * length for length in (*range(180, 260), 510, 511, 512, 513, 10_000)),
    *("x" * 10_000 + end for end in ("a", "b")),
)


class KeyTests(StoreSuite):
    """Tests of keys and rule names."""

    def test_hostile_keys_are_distinct(self, way: str, spec: Spec) -> None:
        """Any two texts are two keys: spaces, newlines, NUL, braces, any length."""
        limit = limit_of("1/minute", spec)
        with self._open(way) as store:
            shared = [text for text in HOSTILE if not store.hit(limit, client=text).allowed]
            check_equal(shared, [], "keys that shared a count with an earlier key")
            lost = [text for text in HOSTILE if store.hit(limit, client=text).allowed]
            check_equal(lost, [], "keys that lost their count")

    def test_hostile_keys_can_be_corrected_and_forgotten(self, way: str) -> None:
        """``correct`` and ``forget`` address the same key as ``apply``."""
        limit = limit_of("2/minute")
        keys = [limit.prefix + text for text in HOSTILE]
        with self._open(way) as store:
            store.correct([Correction(limit, key, 2, None) for key in keys], NOW)
            remaining = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            check_equal(remaining, [0] * len(keys), "charged")
            store.forget(keys)
            remaining = [store.apply([Hit(limit, key, 0)], NOW)[0].remaining for key in keys]
            check_equal(remaining, [2] * len(keys), "forgotten")

    def test_hostile_rule_names_are_distinct(self, way: str) -> None:
        """The name of a rule can be any text, too."""
        limits = [limit_of("1/minute", rule=name) for name in HOSTILE]
        with self._open(way) as store:
            shared = [limit.rule for limit in limits if not store.hit(limit).allowed]
            check_equal(shared, [], "rules that shared a count with an earlier rule")
            lost = [limit.rule for limit in limits if store.hit(limit).allowed]
            check_equal(lost, [], "rules that lost their count")
