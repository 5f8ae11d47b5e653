"""A limiter without HTTP: its rules, the remaining requests, and its blocking and async methods."""

import asyncio
from collections.abc import Callable
from typing import Any

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock

ANN = {"ip": "192.0.2.7", "user": "ann", "path": "/login", "method": "POST"}


def limiter(*rules: Rule) -> Limiter:
    return Limiter(rules, clock=ManualClock(1_000_000.0))


def rule(limits: Any = "2/minute", name: str = "r", **options: Any) -> Rule:
    return Rule(name=name, limits=limits, **options)


def left(rate: Limiter, features: dict[str, Any] = ANN) -> list[int]:
    """Return the remaining requests of each limit."""
    return [decision.remaining for decision in rate.peek(features, cost=0).decisions]


def waiting(rate: Limiter) -> int:
    """Return how many requests wait for a slot, and 1 for a queue that is left. No public name has this number."""
    return sum(len(queue) or 1 for queue in rate.slots.queues._queues.values())


def renewed(rate: Limiter) -> int:
    """Return how many requests the heartbeat renews slots for."""
    return len(rate.slots.renewals)


class Blocking:
    """A limiter, or its clients, through the blocking methods."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.rate, name)  # type: ignore[no-any-return]


class Awaited(Blocking):
    """A limiter, or its clients, through the async methods. By default, each call has its own event loop."""

    def __init__(self, rate: Any, run: Callable[..., Any] = asyncio.run) -> None:
        super().__init__(rate)
        self.run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.rate, f"a{name}")
        return lambda *args, **named: self.run(method(*args, **named))


WAYS = [Blocking, Awaited]
