"""What the suites compare, and how they say what differs. Knows no test library: a difference is an AssertionError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..decision import Decision

__all__ = ["Answer", "answer", "answers", "same"]


class Answer(NamedTuple):
    """All that a decision says, in microseconds."""

    allowed: bool
    remaining: int
    retry_us: int | None
    reset_us: int
    at_us: int
    delay_us: int


def answer(decision: Decision) -> Answer:
    d = decision
    return Answer(d.allowed, d.remaining, d.retry_us, d.reset_us, d.at_us, d.delay_us)


def answers(decisions: Sequence[Decision]) -> list[Answer]:
    return [answer(decision) for decision in decisions]


def same(got: Any, expected: Any, what: str) -> None:
    """Raise unless the two are equal. Not an assert: it says both sides without pytest's help, and under ``-O``."""
    if got != expected:
        raise AssertionError(f"{what}:\n  got      {got!r}\n  expected {expected!r}")
