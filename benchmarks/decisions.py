"""One decision in memory: this package, ``limits``, and a minimum written by hand from a dictionary and a clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from limits import parse, storage, strategies

from benchmarks.timing import per_call, table
from ratelimit_mw import Limiter, Rule

CALLS = 2_000
PEERS = {
    "fixed-window": (strategies.FixedWindowRateLimiter, 1_000_000),
    "sliding-window-counter": (strategies.SlidingWindowCounterRateLimiter, 1_000_000),
    "sliding-window-log": (strategies.MovingWindowRateLimiter, 100),
}
OTHERS = {"tiered-window": 1_000_000, "token-bucket": 1_000_000, "gcra": 1_000_000}


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


def peer(strategy: type[strategies.RateLimiter], amount: int) -> Callable[[int], None]:
    """``hit`` and ``get_window_stats``, which together return the same fields."""
    limiter, item = strategy(storage.MemoryStorage()), parse(f"{amount}/minute")

    def run(calls: int) -> None:
        for _ in range(calls):
            limiter.hit(item, "192.0.2.7")
            limiter.get_window_stats(item, "192.0.2.7")

    return run


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
    candidates = {"floor": floor}
    for name, (strategy, amount) in PEERS.items():
        candidates |= {f"limits {name}": peer(strategy, amount), name: ours(name, amount)}
    candidates |= {name: ours(name, amount) for name, amount in OTHERS.items()}
    times = per_call(candidates, CALLS)
    rows = [("hand-written floor", f"{times['floor']:.0f}", "", "1.0")]
    for name in [*PEERS, *OTHERS]:
        theirs = times.get(f"limits {name}")
        ratio = f"{times[name] / theirs:.2f}" if theirs else "-"
        rows.append((name, f"{times[name]:.0f}", ratio, f"{times[name] / times['floor']:.1f}"))
        if theirs:
            rows.append((f"`limits`, {name}", f"{theirs:.0f}", "1.00", f"{theirs / times['floor']:.1f}"))
    many = per_call({"1": rules(1), "300": rules(300)}, CALLS)
    return (
        table(
            "One decision in memory",
            rows,
            ("", "CPU, ns", "of `limits`", "of the floor"),
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
