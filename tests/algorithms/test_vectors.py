"""The named vectors, worked by hand from the definitions, through every path that decides.

A new store joins by one line in ``PATHS``: everything it needs is a ``ThroughLimiter`` with its address.
"""

from collections.abc import Callable
from typing import Any

import pytest
import reference
from vectors import CASES, Answering, Case, ThroughLimiter, fields, replay

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build
from ratelimit_mw.decision import Charge
from ratelimit_mw.quota import parse_duration


class Function:
    """The algorithm itself, its state in a variable."""

    def __init__(self, case: Case) -> None:
        self.algorithm = build(case["algorithm"], Quota.parse(case["quota"]))
        self.state: Any = None
        self.consumed: dict[int, Charge] = {}

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]:
        self.state, decision = self.algorithm.decide(self.state, now, cost)
        self.consumed[step] = Charge(decision.at_us, cost, decision.delay_us)
        return fields(decision)

    def refund(self, step: int, now: int, cost: int | None) -> None:
        consumed = self.consumed[step]
        back = consumed.cost if cost is None else cost
        self.state = self.algorithm.refund(self.state, now, consumed, back)
        self.consumed[step] = consumed._replace(cost=consumed.cost - back)

    def charge(self, step: int, now: int, cost: int) -> None:
        self.state = self.algorithm.charge(self.state, now, cost)


class ByReference:
    """The slow twin, which shares no code with the package: it keeps the vectors honest."""

    def __init__(self, case: Case) -> None:
        quota = Quota.parse(case["quota"])
        spec = case["algorithm"]
        precision = parse_duration(spec["precision"]) if "precision" in spec else None
        self.twin = reference.build(spec, quota.amount, quota.period_us, quota.burst, precision)
        self.entries: dict[int, Any] = {}
        self.held: dict[int, int] = {}

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]:
        answer, self.entries[step] = self.twin.hit(now, cost)
        self.held[step] = cost
        return answer._asdict()

    def refund(self, step: int, now: int, cost: int | None) -> None:
        back = self.held[step] if cost is None else cost
        self.twin.refund(now, self.entries[step], back)
        self.held[step] -= back

    def charge(self, step: int, now: int, cost: int) -> None:
        self.twin.charge(now, cost)


PATHS: dict[str, Callable[[Case], Answering]] = {
    "reference": ByReference,
    "function": Function,
    "memory": ThroughLimiter,
}


FILES = sorted({case["file"] for case in CASES})


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("file", FILES)
def test_every_path_gives_the_answers_worked_by_hand(file: str, path: Callable[[Case], Answering]) -> None:
    """Allowed, remaining, retry_after, reset_after and delay are the same numbers on every path, to the microsecond."""
    for case in CASES:
        if case["file"] == file:
            replay(case, path(case))


def test_the_vectors_cover_every_algorithm_and_every_kind_of_step() -> None:
    """No algorithm or option is without vectors, or without refunds, charges, rejections and a clock going back."""
    assert len(FILES) == 10
    files = {file: [case for case in CASES if case["file"] == file] for file in FILES}
    for file, cases in files.items():
        steps = [step for case in cases for step in case["steps"]]
        assert any("refund" in step for step in steps), file
        assert any("charge" in step for step in steps), file
        assert any(step.get("retry_after", 0) is None for step in steps), file
        assert any(
            a["now"] > b["now"] for case in cases for a, b in zip(case["steps"], case["steps"][1:], strict=False)
        )
        assert all(case["why"].endswith(".") for case in cases), file
        assert len({case["name"] for case in cases}) == len(cases), file
