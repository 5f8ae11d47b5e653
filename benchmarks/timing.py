"""Timing side by side: all candidates in turn, round after round, in one process; medians and ratios."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["MissingError", "in_turns", "per_call", "progress", "ratio", "table"]

ROUNDS = 15


class MissingError(Exception):
    """A package of a comparison is not installed. The message names it and the command to install it."""


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


def in_turns(candidates: Sequence[Callable[[], int]], rounds: int, patience: float = 10.0) -> list[list[float]]:
    """Calls a second of each candidate in each round; a candidate makes some calls and returns their number.

    One round warms up. Rounds are short and begin with another candidate each time, so that other work of the machine
    affects all candidates alike. A slow or busy machine runs fewer rounds, at least five. ``patience`` is in seconds.
    """
    found: list[list[float]] = [[] for _ in candidates]
    ends = time.monotonic() + patience
    for number in range(rounds + 1):
        if number > 5 and time.monotonic() > ends:
            break
        for i in range(len(candidates)):
            place = (number + i) % len(candidates)
            start = time.perf_counter()
            calls = candidates[place]()
            found[place].append(calls / (time.perf_counter() - start))
    return [rates[1:] for rates in found]


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """How many times as fast as others, round by round: the median."""
    return statistics.median(mine / theirs for mine, theirs in zip(rates, others, strict=True))


def progress(text: str) -> None:
    """Print the current step on stderr. Only tables go to stdout."""
    print(f"... {text}", file=sys.stderr, flush=True)


def table(title: str, rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """A Markdown table under a title."""
    lines = [f"**{title}**", "", "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
