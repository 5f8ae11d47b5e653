"""``Dropped``: the clients that a bounded list has dropped, in two sketches of fixed size. Pure, no I/O.

A HyperLogLog estimates how many names there are. The estimator is that of Ertl, "New cardinality estimation algorithms
for HyperLogLog sketches" (2017), algorithm 6: it has no bias, and needs no tables. It has no correction for registers
that are full, which takes about 2**52 names. A count-min sketch estimates the count of a name (Cormode and
Muthukrishnan, "An improved data stream summary", 2005). A count adds to one cell of each row. Names may share cells, so
the lowest cell of a name is not too low.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

_BITS: Final = 12
_REGISTERS: Final = 1 << _BITS
_MAX_ZEROS: Final = 64 - _BITS + 1
STANDARD_ERROR: Final = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of ``distinct_with``, relative to the true number: 1.63%."""
_ROWS: Final = 5
_COLUMNS: Final = 1_024
_SIZE: Final = 8 + _REGISTERS + 8 * _ROWS * _COLUMNS


class Dropped:
    """Clients that were dropped from a list.

    Attributes:
        most: The most records that were dropped of any client. A client that has more is in the list.
    """

    def __init__(self, data: bytes = bytes(_SIZE)) -> None:
        if len(data) != _SIZE:
            raise ValueError(f"expected a sketch of {_SIZE} bytes; got {len(data)}")
        self.most = int.from_bytes(data[:8])
        self._registers = bytearray(data[8 : 8 + _REGISTERS])
        self._cells = array("Q", data[8 + _REGISTERS :])

    def __bytes__(self) -> bytes:
        return self.most.to_bytes(8) + self._registers + self._cells.tobytes()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of clients that are dropped at the same time."""
        self.most += max(counts.values())
        for client, number in counts.items():
            digest = _digest(client)
            _raise_register(self._registers, digest)
            for cell in _cells_of(digest):
                self._cells[cell] += number

    def merge(self, other: Dropped) -> None:
        """Add the clients of another sketch."""
        self.most += other.most
        self._registers = bytearray(map(max, self._registers, other._registers))
        self._cells = array("Q", map(operator.add, self._cells, other._cells))

    def count_of(self, client: str) -> int:
        """Return an estimate of the dropped count of a client, which is not too low."""
        return min(self.most, *(self._cells[cell] for cell in _cells_of(_digest(client))))

    def distinct_with(self, clients: Iterable[str]) -> int:
        """Return an estimate of the number of clients: those that were dropped, and others."""
        registers = bytearray(self._registers)
        for client in clients:
            _raise_register(registers, _digest(client))
        return round(_estimate(registers))


def _digest(name: str) -> bytes:
    """Return 28 bytes that look random: 8 for the HyperLogLog, and 4 for each row of the count-min sketch."""
    return blake2b(name.encode(), digest_size=8 + 4 * _ROWS).digest()


def _cells_of(digest: bytes) -> list[int]:
    parts = (int.from_bytes(digest[at : at + 4]) for at in range(8, len(digest), 4))
    return [row * _COLUMNS + part % _COLUMNS for row, part in enumerate(parts)]


def _raise_register(registers: bytearray, digest: bytes) -> None:
    """Keep the largest number of leading zeros of a digest, plus 1."""
    number = int.from_bytes(digest[:8])
    register, zeros = number % _REGISTERS, _MAX_ZEROS - (number >> _BITS).bit_length()
    if zeros > registers[register]:
        registers[register] = zeros


def _estimate(registers: Collection[int]) -> float:
    counts, total = Counter(registers), 0.0
    for zeros in range(_MAX_ZEROS, 0, -1):
        total = (total + counts[zeros]) / 2
    total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
    return _REGISTERS**2 / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    """Return x + x**2 + 2 x**4 + 4 x**8 + ..., for the share of registers without a name.

    >>> _sigma(1.0)
    inf
    """
    if x == 1:  # the registers of a damaged sketch may all be empty
        return math.inf
    total, weight, before = x, 1, -1.0
    while total != before:
        x, before = x * x, total
        total += x * weight
        weight *= 2
    return total
