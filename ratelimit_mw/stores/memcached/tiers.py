"""A tiered window as plain counters: each hit counts in one block of every tier, and a window is read block by block.

A hit is counted first and refunded when the request is rejected, so no race exceeds the limit. A read takes the
largest blocks that fit, and the next one, for clocks that run ahead. A block counts at its end, so a wait may be too
long by a block: at most a tenth of the period. Parts of a block that began before the window count at most as much as
the block itself. So a reset deletes the blocks that are read and the parts of the newest ones.
"""

from array import array
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from ...algorithms.window_log import Series, TieredWindow
from ..bytecall import DAY
from .protocol import KeyNames, StoredValue, command, expiry, write

_FACTOR: Final = 12  # blocks of one tier per block of the next
_MAX_BLOCKS: Final = 120  # blocks of the last tier in a window


class TierBlock(NamedTuple):
    """One counter: the tier, and the number of the block in that tier."""

    tier: int
    number: int


class Window:
    """The counters of one key at one time. ``cost`` is that of a request; ``is_counted``: the counters have it."""

    def __init__(self, algorithm: TieredWindow, names: KeyNames, token: bytes, now: int) -> None:
        self._precision, self._period = algorithm.precision, algorithm.period
        self._names, self._token = names, token
        self._sizes = tiers(algorithm.span)
        self._now, self._bucket = now, now // algorithm.precision
        self._groups = cover(self._sizes, algorithm.span, self._bucket)
        self.cost = 0
        self.is_counted = self.is_kept = False

    def _name(self, block: TierBlock) -> bytes:
        return self._names.counter(block, self._token)

    def names(self) -> list[bytes]:
        """Return the names to read."""
        return [self._name(block) for parts, whole in self._groups for block in (*parts, whole) if block]

    def forgotten_names(self) -> list[bytes]:
        """Return the names to delete."""
        newest = [(tier - 1, self._bucket // size * _FACTOR) for tier, size in enumerate(self._sizes) if tier]
        parts = [TierBlock(tier, first + i) for tier, first in newest for i in range(_FACTOR)]
        return [*self.names(), *map(self._name, parts)]

    def names_at(self, at: int) -> list[bytes]:
        """Return the names of the blocks at a time, one of each tier."""
        bucket = at // self._precision
        return [self._name(TierBlock(tier, bucket // size)) for tier, size in enumerate(self._sizes)]

    def add(self, cost: int, is_explicit: bool) -> list[bytes]:
        """Return the commands that count a cost. A block may last for its whole size, and matters a period longer."""
        commands = []
        for name, size in zip(self.names_at(self._now), self._sizes, strict=True):
            lasts = self._period + size * self._precision
            commands += [write(b"add", name, b"0", expiry(max(lasts, DAY * is_explicit))), command(b"incr", name, cost)]
        return commands

    def refund(self, cost: int, at: int | None = None) -> list[bytes]:
        """Return the commands that refund a cost that was counted at a time, by default the time of this window."""
        return [command(b"decr", name, cost) for name in self.names_at(self._now if at is None else at)]

    def state(self, values: Mapping[bytes, StoredValue]) -> Series | None:
        """Return the state without the own cost. Blocks ahead of now count as now."""
        found: list[tuple[int, int]] = []
        for parts, whole in self._groups:
            found += [(self._end(block), self._count(block, values)) for block in parts]
            if whole:
                found = _newest(found, self._count(whole, values))
        merged: dict[int, int] = {}
        for bucket, count in found:
            merged[bucket] = merged.get(bucket, 0) + count
        if self.is_counted:
            merged[self._bucket] = max(0, merged.get(self._bucket, 0) - self.cost)
        merged = {bucket: count for bucket, count in sorted(merged.items()) if count}
        if not merged:
            return None
        *buckets, last = merged
        *totals, total = accumulate(merged.values())
        return Series(array("q", buckets), array("q", totals), 0, len(buckets), 0, last, total)

    def _count(self, block: TierBlock, values: Mapping[bytes, StoredValue]) -> int:
        stored = values.get(self._name(block))
        return 0 if stored is None else int(stored.value)

    def _end(self, block: TierBlock) -> int:
        size = self._sizes[block.tier]
        return min(self._bucket, block.number * size + size - 1)


def _newest(found: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return the newest counts, at most ``most`` in all."""
    kept: list[tuple[int, int]] = []
    for bucket, count in reversed(found):
        kept.append((bucket, min(count, most)))
        most -= kept[-1][1]
    return kept[::-1]


@lru_cache(64)  # time moves on, and a cover has about a hundred blocks
def cover(sizes: tuple[int, ...], span: int, bucket: int) -> tuple[tuple[tuple[TierBlock, ...], TierBlock | None], ...]:
    """Return the blocks of each tier in a window, and the block that these and the smaller ones before are parts of."""
    at, groups = bucket - span + 1, []
    for tier, size in enumerate(sizes):
        is_last = tier + 1 == len(sizes)
        ends = (bucket // size + 2) * size if is_last else -(-at // sizes[tier + 1]) * sizes[tier + 1]
        whole = None if is_last or ends == bucket - span + 1 else TierBlock(tier + 1, ends // sizes[tier + 1] - 1)
        groups.append((tuple(TierBlock(tier, number) for number in range(at // size, ends // size)), whole))
        at = ends
    return tuple(groups)


@lru_cache(1024)
def tiers(span: int) -> tuple[int, ...]:
    """Return the sizes of the tiers in buckets, smallest first: each 12 times the one before, the last at most 120."""
    sizes = [1]
    while span > _MAX_BLOCKS * sizes[-1]:
        sizes.append(_FACTOR * sizes[-1])
    return tuple(sizes)
