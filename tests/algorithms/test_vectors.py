"""The named vectors, worked by hand from the definitions, through every path that decides.

A new store joins by one line in ``PATHS``: everything it needs is a ``ThroughLimiter`` with its address.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import reference

from ratelimit_mw import Limiter, Quota, Rule
from ratelimit_mw.algorithms import build
from ratelimit_mw.decision import Charge, Decision
from ratelimit_mw.quota import parse_duration
from ratelimit_mw.stores import Store

Case = dict[str, Any]
KEY = {"ip": "192.0.2.7"}


def load_cases() -> list[Case]:
    files = sorted((Path(__file__).parent / "vectors").glob("*.json"))
    return [{"file": file.stem, **case} for file in files for case in json.loads(file.read_text("utf-8"))]


CASES = load_cases()


class Answering(Protocol):
    """A path: one key under one quota. ``step`` is the number of the step whose hit is corrected."""

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]: ...
    def refund(self, step: int, now: int, cost: int | None) -> None: ...
    def charge(self, step: int, now: int, cost: int) -> None: ...


def fields(decision: Decision) -> dict[str, Any]:
    return {
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "retry_after": decision.retry_us,
        "reset_after": decision.reset_us,
        "delay": decision.delay_us,
    }


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
        self.state = self.algorithm.give_back(self.state, now, consumed, back)
        self.consumed[step] = consumed._replace(cost=consumed.cost - back)

    def charge(self, step: int, now: int, cost: int) -> None:
        self.state = self.algorithm.charge(self.state, now, cost)


class ThroughLimiter:
    """A limiter with one rule on a store, given a clock that shows the time of the step."""

    def __init__(self, case: Case, store: str | Store = "memory://") -> None:
        self.now = 0
        rule = Rule(name="vector", limits=case["quota"], key=["ip"], algorithm=case["algorithm"])
        self.limiter = Limiter([rule], store=store, clock=lambda: self.now)
        self.verdicts: dict[int, Any] = {}
        self.held: dict[int, int] = {}

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]:
        self.now = now
        self.verdicts[step] = self.limiter.hit(KEY, cost)
        self.held[step] = cost
        return fields(self.verdicts[step].decisions[0])

    def refund(self, step: int, now: int, cost: int | None) -> None:
        self.now = now
        if cost is None:
            self.limiter.refund(self.verdicts[step])
        else:
            self.settle(step, self.held[step] - cost)

    def charge(self, step: int, now: int, cost: int) -> None:
        self.now = now
        self.settle(step, self.held[step] + cost)

    def settle(self, step: int, cost: int) -> None:
        self.limiter.settle(self.verdicts[step], cost)
        self.held[step] = cost


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


def replay(case: Case, path: Answering) -> None:
    """Every step of a case, compared in all that the step states."""
    for number, step in enumerate(case["steps"]):
        now = step["now"]
        if "refund" in step:
            path.refund(step["refund"], now, step.get("cost"))
        elif "charge" in step:
            path.charge(step["charge"], now, step["cost"])
        else:
            expected = {name: value for name, value in step.items() if name not in ("now", "cost")}
            answer = path.hit(number, now, step["cost"])
            assert {name: answer[name] for name in expected} == expected, f"step {number}, {case['why']}"


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("case", CASES, ids=[f"{case['file']}: {case['name']}" for case in CASES])
def test_every_path_gives_the_answers_worked_by_hand(case: Case, path: Callable[[Case], Answering]) -> None:
    """Allowed, remaining, retry_after, reset_after and delay are the same numbers on every path, to the microsecond."""
    replay(case, path(case))


def test_the_vectors_cover_every_algorithm_and_every_kind_of_step() -> None:
    """No algorithm or option is without vectors, or without refunds, charges, rejections and a clock going back."""
    files = {file: [case for case in CASES if case["file"] == file] for file in {case["file"] for case in CASES}}
    assert len(files) == 10
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
