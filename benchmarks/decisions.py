"""One decision in memory: this package, ``limits``, and a minimum written by hand from a dictionary and a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import throttled
from limits import parse, storage, strategies
from pyrate_limiter import Duration, Rate
from pyrate_limiter import Limiter as PyrateLimiter

from benchmarks.timing import per_call, table
from ratelimit_mw import Limiter, Rule

CALLS: Final = 2_000
LARGE: Final = 1_000_000
FLOOR: Final = "by hand"
AMOUNTS: Final = {
    "fixed-window": LARGE,
    "sliding-window-counter": LARGE,
    "sliding-window-log": 100,
    "tiered-window": LARGE,
    "token-bucket": LARGE,
    "gcra": LARGE,
}


def floor(calls: int, arrivals: dict[str, float] | None = None) -> None:
    """A minimal GCRA with one key: no bound, no expiry, no lock, and no result but True."""
    arrivals = {} if arrivals is None else arrivals
    interval, burst = 60 / 1_000_000, 60.0
    for _ in range(calls):
        now = time.monotonic()
        arrival = max(arrivals.get("192.0.2.7", 0.0), now) + interval
        if arrival - now <= burst:
            arrivals["192.0.2.7"] = arrival


def ours(algorithm: str, amount: int) -> Callable[[int], None]:
    """``hit`` with all fields of its decision."""
    limiter = Limiter([Rule(name="api", limits=f"{amount}/minute", algorithm=algorithm)])
    features = {"ip": "192.0.2.7"}

    def run(calls: int) -> None:
        hit = limiter.hit
        for _ in range(calls):
            verdict = hit(features)
            decision = verdict.decisions[0]
            _ = verdict.allowed, decision.remaining, decision.reset_after, decision.retry_after

    return run


def of_limits(strategy: type[strategies.RateLimiter], amount: int) -> Callable[[int], None]:
    """``hit`` and ``get_window_stats``, which together return the same fields."""
    limiter, item = strategy(storage.MemoryStorage()), parse(f"{amount}/minute")

    def run(calls: int) -> None:
        for _ in range(calls):
            limiter.hit(item, "192.0.2.7")
            limiter.get_window_stats(item, "192.0.2.7")

    return run


def of_throttled(algorithm: str, amount: int) -> Callable[[int], None]:
    quota: Any = throttled.rate_limiter.per_min(amount, burst=amount)
    limiter = throttled.Throttled(using=algorithm, quota=quota, store=throttled.store.MemoryStore())

    def run(calls: int) -> None:
        for _ in range(calls):
            state = (result := limiter.limit("192.0.2.7")).state
            _ = result.limited, state.remaining, state.reset_after, state.retry_after

    return run


def of_pyrate(amount: int) -> Callable[[int], None]:
    """One bucket for all clients, as in its README. The result is only whether the hit is allowed."""
    limiter = PyrateLimiter(Rate(amount, Duration.MINUTE))

    def run(calls: int) -> None:
        for _ in range(calls):
            limiter.try_acquire("192.0.2.7", blocking=False)

    return run


PEERS: Final = {
    ("limits 5.8", "fixed-window"): of_limits(strategies.FixedWindowRateLimiter, LARGE),
    ("limits 5.8", "sliding-window-counter"): of_limits(strategies.SlidingWindowCounterRateLimiter, LARGE),
    ("limits 5.8", "sliding-window-log"): of_limits(strategies.MovingWindowRateLimiter, 100),
    ("throttled-py 3.5", "fixed-window"): of_throttled("fixed_window", LARGE),
    ("throttled-py 3.5", "sliding-window-counter"): of_throttled("sliding_window", LARGE),
    ("throttled-py 3.5", "token-bucket"): of_throttled("token_bucket", LARGE),
    ("throttled-py 3.5", "gcra"): of_throttled("gcra", LARGE),
    ("PyrateLimiter 4.5", "sliding-window-log"): of_pyrate(100),
}


def rules(count: int) -> Callable[[int], None]:
    """One decision among ``count`` rules, each with its own path."""
    paths = [f"/api/v{i % 7}/things{i}/{{id}}" for i in range(count)]
    limiter = Limiter(
        [Rule(name=f"r{i}", limits="1000000/minute", match={"path": path}) for i, path in enumerate(paths)]
    )
    features = {"ip": "192.0.2.7", "method": "GET", "path": f"/api/v{(count - 1) % 7}/things{count - 1}/42"}

    def run(calls: int) -> None:
        hit = limiter.hit
        for _ in range(calls):
            hit(features)

    return run


def report() -> str:
    mine = {("ratelimit-mw", algorithm): ours(algorithm, amount) for algorithm, amount in AMOUNTS.items()}
    times = per_call({**mine, **PEERS, (FLOOR, "gcra"): floor}, CALLS)
    packages = list(dict.fromkeys(package for package, _ in times))
    rows = [
        (
            algorithm,
            *(f"{times[package, algorithm]:.0f}" if (package, algorithm) in times else "" for package in packages),
        )
        for algorithm in AMOUNTS
    ]
    many = per_call({"1": rules(1), "300": rules(300)}, CALLS)
    return (
        table(
            "One decision in memory, ns of CPU",
            rows,
            ("", *packages),
        )
        + "\n"
        + table(
            "The number of rules",
            [
                ("1 rule", f"{many['1']:.0f}", "1.00"),
                ("300 rules", f"{many['300']:.0f}", f"{many['300'] / many['1']:.2f}"),
            ],
            ("", "CPU, ns", "of one rule"),
        )
    )
