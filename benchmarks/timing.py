"""Timing side by side: all candidates in turn, round after round, in one process; medians and ratios."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["per_call", "table"]

ROUNDS = 15


def per_call(candidates: Mapping[str, Callable[[int], None]], calls: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Median nanoseconds a call. A candidate is given a number of calls to make; one round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds + 1):
            for name, run in candidates.items():
                start = time.perf_counter_ns()
                run(calls)
                taken[name].append((time.perf_counter_ns() - start) / calls)
    finally:
        gc.enable()
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def table(title: str, rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """A Markdown table under a title."""
    lines = [f"**{title}**", "", "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
