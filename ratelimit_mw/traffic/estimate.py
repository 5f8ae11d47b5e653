"""``Estimate``: a number with its error. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable


class Estimate(int):
    """A whole number that may differ from the true one.

    Args:
        value: The number.
        error: The most by which the true number is larger or smaller: 0 if the number is exact.

    Example:
        >>> Estimate(1200, error=40).error, Estimate(1200) == 1200
        (40, True)
    """

    error: int

    def __new__(cls, value: int, error: int = 0) -> Estimate:
        number = super().__new__(cls, value)
        number.error = error
        return number


def error_of(number: int) -> int:
    """Return the error of a number: 0 for a plain one."""
    return number.error if isinstance(number, Estimate) else 0


def add_up(numbers: Iterable[int]) -> Estimate:
    """Return the sum of numbers. Their errors add up, too."""
    total = error = 0
    for number in numbers:
        total += number
        error += error_of(number)
    return Estimate(total, error)
