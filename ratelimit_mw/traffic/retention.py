"""``Retention``: the resolutions of a traffic log, and how long each is kept, in the syntax of Graphite.

Times are whole seconds since 1970. A run of buckets is the ``range`` of their starts. Pure, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, pairwise
from typing import Final, NamedTuple

from ..errors import ConfigError

DEFAULT: Final = "1m:1d,5m:7d,1h:90d,1d:2y,1w:10y"
HOUR, DAY = 3_600, 86_400
_UNITS: Final = {"s": 1, "m": 60, "h": HOUR, "d": DAY, "w": 7 * DAY, "y": 365 * DAY}
_PART: Final = re.compile(r"\s*([0-9]{1,12})([smhdwy]):([0-9]{1,12})([smhdwy])\s*")
_EXPECTED: Final = f'STEP:TIME, several separated by commas, for example "{DEFAULT}"'
MAX_BUCKETS: Final = 1_000_000


class Resolution(NamedTuple):
    """Buckets of ``step`` seconds, of which each is kept for at least ``kept`` seconds after its end."""

    step: int
    kept: int

    def __str__(self) -> str:
        return f"{_text(self.step)}:{_text(self.kept)}"

    def end_of(self, start: int) -> int:
        """Return when the bucket of ``start`` is dropped: one step later than a range can ask for it."""
        return start + 2 * self.step + self.kept


class Retention:
    """Resolutions, the finest first.

    >>> Retention("1m:1d,1h:90d").resolutions
    (Resolution(step=60, kept=86400), Resolution(step=3600, kept=7776000))
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"expected {_EXPECTED}; got {text!r}")
        self.resolutions = tuple(sorted(_parse(part, text) for part in text.split(",")))
        _check(self.resolutions, text)
        self.finest, self.longest = self.resolutions[0], self.resolutions[-1]

    def __str__(self) -> str:
        return ",".join(map(str, self.resolutions))

    @cached_property
    def of_clients(self) -> Retention:
        """The resolutions that have clients: those of an hour or more, and otherwise the longest one."""
        kept = [each for each in self.resolutions if each.step >= HOUR] or [self.longest]
        return Retention(",".join(map(str, kept)))

    def covering(self, start: int, now: int) -> tuple[Resolution, ...]:
        """Return the resolutions that still have the bucket of ``start``, the finest first: at least the longest."""
        return tuple(each for each in self.resolutions if now - start <= each.kept) or (self.longest,)

    def curve(self, start: int, end: int, now: int, points: int) -> tuple[int, range]:
        """Return the step of the buckets of a curve, and its own steps: at most ``points`` of them.

        The steps are the finest that the log still has, and the buckets are the coarsest that such a step consists of.
        A first step that begins before the log is left out.
        """
        start = self.clamp(start, end, now)
        for step, kept in self.covering(start, now):
            run = _curve_of(step, start, end, points)
            if run.start + step > now - kept:
                return max(each.step for each in self.resolutions if run.step % each.step == 0), run
        return step, run[1:] or run

    def runs(self, start: int, end: int, now: int) -> list[range]:
        """Return the fewest buckets that together have a range, widened to whole buckets of the finest resolution."""
        start = self.clamp(start, end, now)
        resolutions = self.covering(start, now)
        return list(_fewest(resolutions, run_of(resolutions[0].step, start, end)))

    def clamp(self, start: int, end: int, now: int) -> int:
        """Return the start of a range, not before the oldest bucket that is kept."""
        return max(start, min(end, now - self.longest.kept))


def run_of(step: int, start: int, end: int) -> range:
    """Return the buckets that a range touches: one for a range of no length."""
    first = start // step * step
    return range(first, max(-(-end // step) * step, first + step), step)


def _curve_of(step: int, start: int, end: int, points: int) -> range:
    """Return at most ``points`` steps. One longer than ``step`` is a multiple of it, and round if ``step`` is."""
    must_be_round, shortest = _is_round(step), max(1, (end - start) // (points * step)) * step
    longer = (each for each in count(shortest, step) if _is_round(each) or not must_be_round)
    runs = (run_of(each, start, end) for each in longer)
    return next(run for run in runs if len(run) <= points)


def _is_round(step: int) -> bool:
    """Return whether a step divides an hour, has whole hours and divides a day, or has whole days."""
    return not (HOUR % step and (step % HOUR or DAY % step) and step % DAY)


def _fewest(resolutions: Sequence[Resolution], run: range) -> Iterator[range]:
    """Divide a run of the finest resolution: coarse buckets in its middle, and finer ones on both sides."""
    *finer, (step, _) = resolutions
    first, last = -(-run.start // step) * step, run.stop // step * step
    if not finer:
        yield run
    elif first >= last:
        yield from _fewest(finer, run)
    else:
        if run.start < first:
            yield from _fewest(finer, range(run.start, first, run.step))
        yield range(first, last, step)
        if last < run.stop:
            yield from _fewest(finer, range(last, run.stop, run.step))


def _parse(part: str, text: str) -> Resolution:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConfigError(f"cannot parse retention {text!r}: expected {_EXPECTED}; got {part!r}")
    step, kept = int(match[1]) * _UNITS[match[2]], int(match[3]) * _UNITS[match[4]]
    if not 0 < step <= kept <= MAX_BUCKETS * step:
        raise ConfigError(f"retention {part.strip()!r} must have from 1 to {MAX_BUCKETS:,} buckets")
    return Resolution(step, kept // step * step)


def _check(resolutions: Iterable[Resolution], text: str) -> None:
    """Check that each bucket consists of whole finer ones, which are there until it ends."""
    for fine, coarse in pairwise(resolutions):
        if coarse.step % fine.step or not fine.step < coarse.step <= fine.kept < coarse.kept:
            problem = f"the step of {str(coarse)!r} must be a multiple of that of {str(fine)!r}, and be kept longer"
            raise ConfigError(f"cannot use retention {text!r}: {problem}. {str(fine)!r} must be kept for such a step")


def _text(seconds: int) -> str:
    """Return the shortest exact text of a time: ``"1w"`` for 604,800 seconds."""
    return next(f"{seconds // size}{unit}" for unit, size in reversed(_UNITS.items()) if seconds % size == 0)
