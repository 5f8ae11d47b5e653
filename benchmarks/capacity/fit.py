"""Least squares: the cost of each part of a call, from the costs of whole phases."""

from collections.abc import Sequence
from operator import mul
from typing import Final

_SWEEPS: Final = 5_000


def fit(rows: Sequence[Sequence[float]], totals: Sequence[float]) -> list[float]:
    """Return a cost for each column, none below 0, so that the sums of the rows are close to the totals.

    Errors count in proportion to their total. The costs are improved one after another (coordinate descent).

    >>> [round(cost, 6) for cost in fit([(1, 1), (1, 3), (2, 1)], [10, 14, 18])]
    [8.0, 2.0]
    """
    scaled = [[part / total for part in row] for row, total in zip(rows, totals, strict=True) if total > 0]
    errors, costs = [1.0] * len(scaled), [0.0] * len(rows[0])
    columns = [(i, column) for i, column in enumerate(zip(*scaled, strict=True)) if any(column)]
    for _ in range(_SWEEPS):
        for i, column in columns:
            slope = sum(map(mul, column, errors)) / sum(map(mul, column, column))
            change = max(-costs[i], slope)
            costs[i] += change
            errors = [error - change * part for error, part in zip(errors, column, strict=True)]
    return costs
