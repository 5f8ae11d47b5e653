"""A function of limits that counts its calls, and a limiter with it."""

from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock

ALICE = {"user": "alice"}


class Plans:
    """A function of a value that counts its calls. ``result`` is returned, or raised when it is an error."""

    def __init__(self, result: Any = "2/minute") -> None:
        self.result = result
        self.calls: list[Any] = []

    def __call__(self, value: Any) -> Any:
        self.calls.append(value)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def build(limits: Any, clock: ManualClock | None = None, **options: Any) -> Limiter:
    options = {"key": ["user"], **options}
    return Limiter([Rule(name="api", limits=limits, **options)], clock=clock or ManualClock(1_000_000.0))


def quotas(limiter: Limiter, features: dict[str, Any] = ALICE) -> list[str]:
    return [str(decision.quota) for decision in limiter.peek(features).decisions]
