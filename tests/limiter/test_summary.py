"""Summaries: counts in bounded memory, with a bound of their error."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.limiter.summary import Summary

SIZE = 3
texts = st.lists(st.text("abcdefghij", min_size=1, max_size=1), max_size=60)


@given(st.lists(texts, min_size=1, max_size=4))
def test_the_true_count_is_within_the_error(parts: list[list[str]]) -> None:
    """Even after the summaries of several processes are merged."""
    total, true = Summary(), Counter[str]()
    for part in parts:
        summary = Summary()
        for text in part:
            summary.add(text, 1, SIZE)
            assert len(summary.counts) <= 2 * SIZE
        total.merge(summary, SIZE)
        true.update(part)
    assert len(total.counts) <= SIZE
    for text in "abcdefghij":
        count = total.counts.get(text, 0)
        assert count <= true[text] <= count + total.error
    assert total.error * (SIZE + 1) <= true.total()


def test_few_texts_have_exact_counts() -> None:
    summary = Summary()
    for text in "aab":
        summary.add(text, 2, SIZE)
    assert (summary.counts, summary.error) == ({"a": 4, "b": 2}, 0)
