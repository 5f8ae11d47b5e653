"""Traces through an algorithm in Python and through its twin in Lua, run by a real server with the states passed in."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import redis

from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.algorithms.concurrency import Concurrency
from ratelimit_mw.algorithms.window_log import Series
from ratelimit_mw.decision import Charge, Decision, Limit, SlotCost
from ratelimit_mw.stores.redis.call import number_or_text
from ratelimit_mw.stores.redis.script import PACKED

FILES = ("muldiv", "fixed_window", "sliding_window_counter", "bucket", "window_log", "concurrency", "ban")
NAMES = (
    *("FixedWindow", "SlidingWindowCounter", "Bucket", "LeakyBucketQueue", "TieredWindow"),
    *("RejectionCountingLog", "Concurrency", "Ban"),
)

Step = tuple[str, int, int | list[int], int | None, int | None, int | str | None]
"""Kind, time, cost (with the id of the slots, if it names them), and the time, cost and delay of the charge."""


class Trace:
    """Steps of one limit, with the results of Python."""

    def __init__(self, limit: Limit, start: Any = None, total: int = 0) -> None:
        self.limit = limit
        self.start, self.total = start, total
        self.state: Any = start
        self.steps: list[Step] = []
        self.expected: list[str] = []

    def decide(self, now: int, cost: int) -> Decision:
        self.state, decision = self.limit.decide(self.state, now, cost)
        named = [int(cost), cost.slot] if isinstance(cost, SlotCost) else cost
        self._note(("decide", now, named, None, None, None), said(decision))
        return decision

    def charge(self, now: int, cost: int) -> None:
        self.state = self.limit.algorithm.charge(self.state, now, cost)
        self._note(("charge", now, cost, None, None, None), "")

    def refund(self, now: int, consumed: Charge, cost: int) -> None:
        self.state = self.limit.algorithm.refund(self.state, now, consumed, cost)
        self._note(("refund", now, cost, consumed.at_us, consumed.cost, number_or_text(consumed.delay_us)), "")

    def _note(self, step: Step, answer: str) -> None:
        self.steps.append(step)
        self.expected += (answer, text(self.limit.algorithm, self.state))

    def packed(self) -> tuple[Any, ...]:
        packed = PACKED[self.limit]
        assert packed is not None
        return packed[0], numbers(self.start), self.total, self.steps


def differences(server: redis.Redis, traces: Sequence[Trace]) -> list[str]:
    """The steps at which Lua and Python differ."""
    reply = server.eval(SCRIPT, 0, msgspec.msgpack.encode([trace.packed() for trace in traces]))
    answers = iter(answer.decode() for answer in reply)  # type: ignore[union-attr]
    found = []
    for trace in traces:
        for i, expected in enumerate(trace.expected):
            if (answer := next(answers)) != expected:
                found.append(f"{trace.limit}, step {i // 2}: {trace.steps[i // 2]}: Lua {answer}, Python {expected}")
    return found


def said(decision: Decision) -> str:
    retry = "never" if decision.retry_us is None else str(decision.retry_us)
    allowed = "true" if decision.allowed else "false"
    return f"{allowed} {decision.remaining} {retry} {decision.reset_us} {decision.at_us} {decision.delay_us}"


def numbers(state: Any) -> list[int] | None:
    if isinstance(state, Series):
        return [number for entry in state.entries() for number in entry]
    return None if state is None else list(state)


def text(algorithm: Algorithm, state: Any) -> str:
    if state is None:
        return ""
    if isinstance(state, Series):
        return ":".join(map(str, numbers(state) or ()))
    if isinstance(algorithm, Concurrency):  # in Lua the order is that of the ids
        state = [number for lease in sorted(zip(*[iter(state)] * 2, strict=True)) for number in lease]
    return algorithm.dump(state).decode()


def _script() -> str:
    twins = [files("ratelimit_mw.algorithms").joinpath(f"{name}.lua").read_text("utf-8") for name in FILES]
    kinds = ", ".join(f"{name} = {name}" for name in NAMES)
    shell = Path(__file__).with_name("redis_twins.lua").read_text("utf-8")
    return "\n".join([*twins, f"local KINDS = {{{kinds}}}", shell])


SCRIPT = _script()
