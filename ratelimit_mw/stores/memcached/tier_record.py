"""tiered-window as plain counters: each hit counts in one block of every tier, and a window is read block by block.

The blocks of a window that is read are as large as fit: fine ones up to the first full minute, say, then minutes, then
hours. So a day is at most 24 + 59 + 59 of them, and the block that comes next, for clocks that run ahead. A hit that
fits is counted in all tiers and the window is read again in the same trip: when it is over by then, somebody else was
faster, and the hit is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ...algorithms.limit import Limit
from ...algorithms.window_log import Series, TieredWindow
from ...clock import SECOND
from ...decision import Correction, Decision
from .client.protocol import Ask, Found, Told, WireError, counted, decrement, increment
from .keys import DAY, Life, Names
from .partial_sums import decisive, series_of
from .record import Cell

__all__ = ["TieredCell", "tiers"]

_NATURAL: Final = (SECOND, 60 * SECOND, 3600 * SECOND, DAY, 16 * DAY)
_FAMILY: Final = 64  # blocks of one tier that make one of the next, at most, where that can be had


class Block(NamedTuple):
    """One counter: which tier, and the how manieth block of it."""

    tier: int
    number: int


class TieredCell(Cell):
    """The counters of one key."""

    counts_anyway = True
    algorithm: TieredWindow

    def __init__(
        self, limit: Limit, token: bytes, names: Names, now: int, generations: MutableMapping[bytes, bytes]
    ) -> None:
        super().__init__(limit, token, names, now)
        assert isinstance(limit.algorithm, TieredWindow)
        self.algorithm = limit.algorithm
        self._sizes = tiers(self.algorithm.period, self.algorithm.precision)
        self._bucket = now // self.algorithm.precision
        self._cover = cover(self._sizes, self.algorithm.span, self._bucket)
        self._generations = generations
        self._call_by(generations.get(token, b""))
        self._read = False
        self._values: Mapping[bytes, Found] = {}
        self._counts: dict[Block, int] = {}
        self._asked: list[Block] = []

    def _call_by(self, generation: bytes) -> None:
        """Name the counters; forgetting a key gives it another generation of them."""
        self._generation = generation
        self._cover_names = [self._name(block) for block in self._cover]

    def _name(self, block: Block) -> bytes:
        return self.names.counter(block.tier, block.number, self._generation, self.token)

    # -- reading -------------------------------------------------------------------------------------------

    def wants(self) -> Sequence[bytes]:
        return () if self._read else self._all()

    def _all(self) -> Sequence[bytes]:
        return (self.names.generation(self.token), *self._cover_names)

    def wants_for(self, changes: Sequence[Correction]) -> Sequence[bytes]:
        fine = [self._name(Block(0, self._bucket_of(change))) for change in changes if change.consumed]
        return () if self._read else (self.names.generation(self.token), *fine)

    def _bucket_of(self, change: Correction) -> int:
        at = self.now if change.consumed is None else change.consumed.at_us
        return at // self.algorithm.precision

    def take(self, values: Mapping[bytes, Found]) -> None:
        for block in self._asked:
            children = self._children(block)
            self._take_apart(block, self._counts_of(values, children, [self._name(child) for child in children]))
        if not self._read:
            self._take_first(values)

    def _take_first(self, values: Mapping[bytes, Found]) -> None:
        generation = self._generation_in(values)
        self._read = generation == self._generation
        if not self._read:
            # It was forgotten since this process knew it.
            self._call_by(generation)
            self._generations[self.token] = generation
            return
        self._values = values
        self._counts = self._counts_of(values, self._cover, self._cover_names)

    def _generation_in(self, values: Mapping[bytes, Found]) -> bytes:
        found = values.get(self.names.generation(self.token))
        return b"." + found.value if found else b""

    def _counts_of(
        self, values: Mapping[bytes, Found], blocks: Sequence[Block], names: Sequence[bytes]
    ) -> dict[Block, int]:
        """What is counted in each block that holds something."""
        try:
            counts = {
                block: int(values[name].value) for block, name in zip(blocks, names, strict=True) if name in values
            }
        except ValueError as error:
            raise WireError(f"a value that is no counter: {error}") from error
        return {block: count for block, count in counts.items() if count}

    @property
    def state(self) -> Series | None:
        return series_of(sorted((self._end(block), count) for block, count in self._counts.items()))

    def _end(self, block: Block) -> int:
        """The last bucket of a block; what is ahead of now counts as now."""
        size = self._sizes[block.tier]
        return min(self._bucket, block.number * size + size - 1)

    # -- exact times ---------------------------------------------------------------------------------------

    def vague(self, decision: Decision, _cost: int) -> Sequence[bytes]:
        newest = max(map(self._end, self._counts), default=0)
        buckets = decisive(self.algorithm, decision, self.now, newest)
        self._asked = [block for block in self._counts if block.tier and self._end(block) in buckets]
        return [self._name(child) for block in self._asked for child in self._children(block)]

    def _children(self, block: Block) -> list[Block]:
        each = self._sizes[block.tier] // self._sizes[block.tier - 1]
        return [Block(block.tier - 1, number) for number in range(block.number * each, (block.number + 1) * each)]

    def _take_apart(self, block: Block, parts: dict[Block, int]) -> None:
        """Put the parts of a block in its place. What others have changed meanwhile is left to the newest part."""
        left = self._counts.pop(block)
        newest = self._children(block)[-1]
        for part, count in parts.items():
            if found := min(left, count):
                self._counts[part], newest = found, part
                left -= found
        if left:
            self._counts[newest] = self._counts.get(newest, 0) + left

    # -- writing -------------------------------------------------------------------------------------------

    def consume(self, kept: Any, decision: Decision, cost: int, life: Life) -> Ask:
        lines = self._adding(decision.at_us // self.algorithm.precision, cost, life)
        return Ask(self.token, lines, self._all())

    def _adding(self, bucket: int, cost: int, life: Life) -> list[bytes]:
        lines = []
        for tier, size in enumerate(self._sizes):
            name = self._name(Block(tier, bucket // size))
            # The block may go on for as long as it is large, and is in sight for a period from then on.
            lines.append(counted(name, life(self.algorithm.period + size * self.algorithm.precision)))
            lines.append(increment(name, cost))
        return lines

    def correct(self, changes: Sequence[Correction], life: Life) -> Ask | None:
        lines: list[bytes] = []
        held: dict[int, int] = {}
        for change in changes:
            bucket = self._bucket_of(change)
            if change.consumed is None:
                lines += self._adding(bucket, change.cost, life)
                held[bucket] = self._held(held, bucket) + change.cost
            elif back := min(self._held(held, bucket), change.cost):
                lines += self._taking(bucket, back)
                held[bucket] -= back
        return Ask(self.token, lines) if lines else None

    def _held(self, held: dict[int, int], bucket: int) -> int:
        """What a fine bucket holds, after the changes so far."""
        if bucket not in held:
            block = Block(0, bucket)
            held[bucket] = self._counts_of(self._values, [block], [self._name(block)]).get(block, 0)
        return held[bucket]

    def _taking(self, bucket: int, cost: int) -> list[bytes]:
        return [decrement(self._name(Block(tier, bucket // size)), cost) for tier, size in enumerate(self._sizes)]

    def won(self, told: Told) -> bool:
        if self._generation_in(told.values) != self._generation:
            return False
        return sum(self._counts_of(told.values, self._cover, self._cover_names).values()) <= self.algorithm.amount

    def corrected(self, told: Told) -> bool:
        return True


@lru_cache(1024)
def cover(sizes: tuple[int, ...], span: int, bucket: int) -> tuple[Block, ...]:
    """The blocks from the oldest bucket in sight up to the one that comes after the largest one of now."""
    blocks, tier = [], 0
    at, end = bucket - span + 1, (bucket // sizes[-1] + 2) * sizes[-1]
    while at < end:
        while tier + 1 < len(sizes) and at % sizes[tier + 1] == 0:
            tier += 1
        blocks.append(Block(tier, at // sizes[tier]))
        at += sizes[tier]
    return tuple(blocks)


@lru_cache(1024)
def tiers(period: int, precision: int) -> tuple[int, ...]:
    """The sizes of the tiers in buckets, the smallest first, each a multiple of the one before.

    The precision; those of 1 s, 1 min, 1 h, 1 day and 16 days that are its multiples and less than the period; and
    what is needed in between and above so that no more than some 64 blocks of one tier are ever read.
    """
    sizes = [1]
    for natural in _NATURAL:
        if precision < natural < period and natural % precision == 0:
            _climb(sizes, natural // precision)
            sizes.append(natural // precision)
    while period // precision > sizes[-1] * _FAMILY:
        sizes.append(sizes[-1] * _FAMILY // 2)
    return tuple(sizes)


def _climb(sizes: list[int], target: int) -> None:
    """Put tiers in between when ``target`` is too far from the last one."""
    while target // sizes[-1] > _FAMILY:
        steps = [step for step in range(2, _FAMILY + 1) if target // sizes[-1] % step == 0]
        if not steps:
            return
        sizes.append(sizes[-1] * steps[-1])
