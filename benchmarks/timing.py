"""Measuring side by side: all candidates in turn, round after round, in one process; medians and ratios.

Processor time is the measure that other work on the machine changes least.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import NamedTuple

ROUNDS = 15

most_rounds = 100
"""The maximum number of rounds of each comparison. ``--rounds`` sets it."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a server. Subtract an earlier reading to measure a span."""

    cpu: float = 0.0
    """Seconds of processor time."""
    commands: int = 0
    """Calls of scripts: the commands that a store sends to decide."""
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_replicated: int = 0
    """From a primary to its replicas, or received by a replica."""

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(*(mine - other for mine, other in zip(astuple(self), astuple(earlier), strict=True)))

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class Turn(NamedTuple):
    """The measurements of one turn of a candidate."""

    rate: float
    """Decisions per second."""
    cpu: float
    """Microseconds of processor time for one decision, without the servers."""
    server_cpu: float = 0.0
    """The same of the servers."""
    commands: float = 0.0
    """Commands to the servers for one decision."""

    @property
    def whole_cpu(self) -> float:
        """Microseconds of processor time for one decision, with the servers."""
        return self.cpu + self.server_cpu

    @classmethod
    def over(cls, decisions: int, seconds: float, cpu: float, counted: Counters) -> Turn:
        micro = 1e6 / decisions
        return cls(decisions / seconds, cpu * micro, counted.cpu * micro, counted.commands / decisions)


def per_call(candidates: Mapping[str, Callable[[int], None]], calls: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Median nanoseconds of processor time a call. A candidate is given a number of calls; one round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()
    try:
        for _ in range(min(rounds, most_rounds) + 1):
            for name, run in candidates.items():
                start = time.process_time_ns()
                run(calls)
                taken[name].append((time.process_time_ns() - start) / calls)
    finally:
        gc.enable()
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def timed(run: Callable[[], int], counters: Callable[[], Counters] = Counters) -> Callable[[], Turn]:
    """Measure a candidate that makes some decisions in this process, and returns their number."""

    def turn() -> Turn:
        before, busy, start = counters(), time.process_time(), time.perf_counter()
        decisions = run()
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        return Turn.over(decisions, seconds, busy, counters() - before)

    return turn


def duration(seconds: float) -> float:
    """Return how long a turn takes. A single round is a fifth as long: it only shows that a comparison runs."""
    return seconds if most_rounds > 1 else seconds / 5


def in_turns(candidates: Sequence[Callable[[], Turn]], rounds: int, patience: float = 10.0) -> list[list[Turn]]:
    """The turns of each candidate.

    One round warms up. Rounds are short and begin with another candidate each time, so that other work of the machine
    affects all candidates alike. A slow or busy machine runs fewer rounds, at least five. ``patience`` is in seconds.
    """
    found: list[list[Turn]] = [[] for _ in candidates]
    ends = time.monotonic() + patience
    for number in range(min(rounds, most_rounds) + 1):
        if number > 5 and time.monotonic() > ends:
            break
        for i in range(len(candidates)):
            place = (number + i) % len(candidates)
            found[place].append(candidates[place]())
    return [turns[1:] for turns in found]


def median(turns: Sequence[Turn]) -> Turn:
    return Turn(*map(statistics.median, zip(*turns, strict=True)))


def ratio(turns: Sequence[Turn], others: Sequence[Turn], of: str = "rate") -> float:
    """How many times a measurement of others, round by round: the median."""
    get = attrgetter(of)
    return statistics.median(get(mine) / get(theirs) for mine, theirs in zip(turns, others, strict=True))


def progress(text: str) -> None:
    """Print the current step on stderr. Only tables go to stdout."""
    print(f"... {text}", file=sys.stderr, flush=True)


def table(title: str, rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """A Markdown table under a title."""
    lines = [f"**{title}**", "", "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])
