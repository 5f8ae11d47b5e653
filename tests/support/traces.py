"""Random limits and random traffic for the properties of the algorithms. All times are whole microseconds."""

from dataclasses import dataclass
from typing import Any

import reference
from hypothesis import strategies as st
from reference_base import Reference, ReferenceResult

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import Algorithm, build
from ratelimit_mw.decision import Decision

SPECS: dict[str, Any] = {
    "fixed-window": "fixed-window",
    "sliding-window-log": "sliding-window-log",
    "sliding-window-log-count-rejected": {"name": "sliding-window-log", "count_rejected": True},
    "sliding-window-counter": "sliding-window-counter",
    "tiered-window": "tiered-window",
    "token-bucket": "token-bucket",
    "token-bucket-interval": {"name": "token-bucket", "refill": "interval"},
    "leaky-bucket": "leaky-bucket",
    "leaky-bucket-queue": {"name": "leaky-bucket", "mode": "queue"},
    "gcra": "gcra",
}
CONTINUOUS = ("token-bucket", "leaky-bucket", "gcra")
BUCKETS = (*CONTINUOUS, "token-bucket-interval", "leaky-bucket-queue")

# Rounding shows in tiny and prime periods, and large products occur in common ones.
PERIODS = (1, 2, 7, 10, 60, 997, 3000, 1_000_000, 86_400_000_000, 31_622_400_000_000)
AMOUNTS = st.one_of(st.integers(1, 13), st.sampled_from((100, 997, 7000, 10_000)))


@dataclass(frozen=True)
class Shape:
    """Build an algorithm by its name in ``SPECS`` with its quota. ``precision`` is that of the tiered window."""

    kind: str
    amount: int
    period: int
    burst: int | None = None
    precision: int | None = None

    @property
    def capacity(self) -> int:
        return self.burst or self.amount

    def build(self) -> Algorithm:
        spec = SPECS[self.kind]
        if self.precision is not None:
            spec = {"name": spec, "precision": f"{self.precision / 1e6:.6f}s"}
        return build(spec, Quota.exact(self.amount, self.period, self.burst))

    def reference(self) -> Reference:
        return reference.build(SPECS[self.kind], self.amount, self.period, self.burst, self.precision)


@st.composite
def shapes(draw: st.DrawFn, kind: str, amounts: st.SearchStrategy[int] = AMOUNTS) -> Shape:
    period, amount = draw(st.sampled_from(PERIODS)), draw(amounts)
    burst = draw(st.one_of(st.none(), amounts)) if kind in BUCKETS else None
    parts = [n for n in (1, 2, 3, 4, 7, 60, 100, 997) if period % n == 0]
    precision = period // draw(st.sampled_from(parts)) if kind == "tiered-window" else None
    return Shape(kind, amount, period, burst, precision)


def pauses(shape: Shape, back: bool = True) -> st.SearchStrategy[int]:
    """Generate pauses: none, short, about one hit, about a period, idle, and sometimes a backward clock."""
    period, share = shape.period, shape.period // shape.amount
    marks = [0, 0, 1, share, share + 1, period // 8, period - 1, period, period + 1, 2 * period - 1, 2 * period]
    spans = [st.integers(0, period // 3), st.integers(0, period), st.integers(0, 3 * period + 3)]
    forward = [st.sampled_from([*marks, shape.precision or 0]), *spans]
    return st.one_of(*forward, st.integers(-2 * period, -1)) if back else st.one_of(*forward)


def costs(shape: Shape) -> st.SearchStrategy[int]:
    """Generate costs from zero to more than can ever fit."""
    return st.one_of(st.just(1), st.integers(0, 3), st.integers(0, shape.capacity + 2))


def steps(shape: Shape, back: bool = True, most: int = 30) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Generate (pause, cost) of each hit, often many of them to fill the window."""
    step = st.tuples(pauses(shape, back), costs(shape))
    return st.one_of(st.lists(step, min_size=1, max_size=5), st.lists(step, min_size=most // 2, max_size=most))


def starts(shape: Shape) -> st.SearchStrategy[int]:
    """Generate the time of the first hit: at the edge of a window, near the epoch, or now."""
    edges = st.integers(0, 3).map(lambda window: window * shape.period)
    return st.one_of(edges, st.integers(0, 3 * shape.period), st.integers(1_700_000_000_000_000, 1_700_000_001_000_000))


def result_of(decision: Decision) -> ReferenceResult:
    """Convert a decision of the package to the result type of the reference."""
    return ReferenceResult(
        decision.allowed, decision.remaining, decision.retry_us, decision.reset_us, decision.delay_us
    )
