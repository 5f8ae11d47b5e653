"""Comparison of decisions for the suites. A difference raises `AssertionError`; no test library is needed."""

from collections.abc import Sequence
from typing import Any

from ..decision import Decision


def values_of(decision: Decision) -> dict[str, int | None]:
    """Return the numbers of a decision, with times in microseconds."""
    names = ("allowed", "remaining", "retry_us", "reset_us", "at_us", "delay_us")
    return {name: getattr(decision, name) for name in names}


def all_values(decisions: Sequence[Decision]) -> list[dict[str, int | None]]:
    return [values_of(decision) for decision in decisions]


def check_equal(actual: Any, expected: Any, subject: str) -> None:
    """Raise unless both values are equal. An ``assert`` would show no values without pytest, and nothing under -O."""
    if actual != expected:
        raise AssertionError(f"{subject}:\n  got      {actual!r}\n  expected {expected!r}")
