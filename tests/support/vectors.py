"""The vectors computed by hand, and the paths that replay them."""

import json
from typing import Any, Protocol

from folders import ROOT

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Charge, Correction, Decision, Hit
from ratelimit_mw.stores import Store
from ratelimit_mw.testing.store_suite import StoreHandle, limit_of

Case = dict[str, Any]

KEY = {"ip": "192.0.2.7"}


def load_cases() -> list[Case]:
    files = sorted((ROOT / "tests" / "algorithms" / "vectors").glob("*.json"))
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


class ThroughLimiter:
    """A limiter with one rule on a store, with a clock that shows the time of the step."""

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


class ThroughStore:
    """A path for the vectors: one limit in a store."""

    def __init__(self, case: Case, handle: StoreHandle) -> None:
        self.limit = limit_of(case["quota"], case["algorithm"])
        self.key = self.limit.prefix + "ip=192.0.2.7"
        self.handle = handle
        self.consumed: dict[int, Charge] = {}

    def hit(self, step: int, now: int, cost: int) -> dict[str, Any]:
        (decision,) = self.handle.apply([Hit(self.limit, self.key, cost)], now)
        self.consumed[step] = Charge(decision.at_us, cost, decision.delay_us)
        return fields(decision)

    def refund(self, step: int, now: int, cost: int | None) -> None:
        consumed = self.consumed[step]
        back = consumed.cost if cost is None else cost
        self.handle.correct([Correction(self.limit, self.key, back, consumed)], now)
        self.consumed[step] = consumed._replace(cost=consumed.cost - back)

    def charge(self, step: int, now: int, cost: int) -> None:
        self.handle.correct([Correction(self.limit, self.key, cost, None)], now)


def replay(case: Case, path: Answering) -> None:
    """Compare every step of a case in all values that the step states."""
    for number, step in enumerate(case["steps"]):
        now = step["now"]
        if "refund" in step:
            path.refund(step["refund"], now, step.get("cost"))
        elif "charge" in step:
            path.charge(step["charge"], now, step["cost"])
        else:
            expected = {name: value for name, value in step.items() if name not in ("now", "cost")}
            answer = path.hit(number, now, step["cost"])
            assert {name: answer[name] for name in expected} == expected, (
                f"{case['name']}, step {number}: {case['why']}"
            )
