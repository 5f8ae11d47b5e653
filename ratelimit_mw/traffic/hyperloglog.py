"""``HyperLogLog``: estimates how many different names were added, in 4,096 bytes. Pure, no I/O.

Two sketches merge into that of the names of both. The estimator is that of Otmar Ertl, "New cardinality estimation
algorithms for HyperLogLog sketches" (2017), algorithm 6: it has no bias, and needs no tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from .digest import digest_of
from .estimate import Estimate

_BITS: Final = 12
_REGISTERS: Final = 1 << _BITS
_HASH: Final = 64
_LONGEST: Final = _HASH - _BITS + 1
STANDARD_ERROR: Final = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of an estimate, relative to the true number: 1.63%."""
_DEVIATIONS: Final = 3


class HyperLogLog:
    """A register keeps the largest number of leading zeros in the digests of its names, plus 1."""

    def __init__(self, registers: bytes = bytes(_REGISTERS)) -> None:
        self._registers = bytearray(registers)

    def __bytes__(self) -> bytes:
        return bytes(self._registers)

    def add(self, names: Iterable[str], salt: str) -> None:
        """Add names. ``salt`` is the salt of the log."""
        for name in names:
            number = int.from_bytes(digest_of(salt, name)[: _HASH // 8])
            register, rest = number % _REGISTERS, number >> _BITS
            zeros = _LONGEST - rest.bit_length()
            if zeros > self._registers[register]:
                self._registers[register] = zeros

    def merge(self, other: HyperLogLog) -> None:
        """Add the names of another sketch of the same log."""
        self._registers = bytearray(map(max, self._registers, other._registers))

    def estimate(self) -> Estimate:
        """Return how many names were added."""
        counts = Counter(self._registers)
        total = _REGISTERS * _tau(1 - counts[_LONGEST] / _REGISTERS)
        for zeros in range(_LONGEST - 1, 0, -1):
            total = (total + counts[zeros]) / 2
        total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
        return with_error(_REGISTERS**2 / (2 * math.log(2) * total), STANDARD_ERROR)


def with_error(number: float, standard_error: float) -> Estimate:
    """Return an estimate whose error is three standard errors. The true error is smaller in 99.7% of all cases."""
    return Estimate(round(number), math.ceil(_DEVIATIONS * standard_error * number))


def _sigma(x: float) -> float:
    """Return x + x**2 + 2 x**4 + 4 x**8 + ..., for the share of registers without a name."""
    if x == 1:
        return math.inf
    total, weight, before = x, 1, -1.0
    while total != before:
        x, before = x * x, total
        total += x * weight
        weight *= 2
    return total


def _tau(x: float) -> float:
    """Return (1 - x - (1 - x**(1/2))**2 / 2 - (1 - x**(1/4))**2 / 4 - ...) / 3, for the share of full registers."""
    if x in (0, 1):
        return 0
    total, weight, before = 1 - x, 1.0, -1.0
    while total != before:
        x, before, weight = math.sqrt(x), total, weight / 2
        total -= (1 - x) ** 2 * weight
    return total / 3
