"""A tiered window as counters: each hit counts in one block of every tier, and a window is read block by block.

A read takes the largest blocks that fit, and the next one, for clocks that run ahead. An allowed hit is counted in all
tiers, and the window is read again in the same round trip: a window over its limit means that another client was
faster. A block counts at its end. The end of a rejection depends on single buckets, so those blocks are read in parts.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

from ...algorithms.limit import Limit
from ...algorithms.window_log import Series, TieredWindow
from ...decision import Decision
from ...receipt import Correction
from .client.protocol import KeyCommands, KeyReply, ProtocolError, StoredValue, command, write
from .keys import expiry
from .record import Record, StepContext

_FACTOR: Final = 60  # blocks of one tier per block of the next
_MAX_BLOCKS: Final = 64  # blocks of the last tier in a window
_MAX_PARTS: Final = 4  # blocks that are read in parts at a time


class TierBlock(NamedTuple):
    """One counter: the tier, and the number of the block in that tier."""

    tier: int
    number: int


class TieredRecord(Record):
    has_counters = True

    def __init__(self, context: StepContext, limit: Limit, key: str, token: bytes, now: int, is_explicit: bool) -> None:
        super().__init__(context, limit, key, token, now, is_explicit)
        self.algorithm = cast(TieredWindow, limit.algorithm)
        self._sizes = tiers(self.algorithm.span)
        self._bucket = now // self.algorithm.precision
        self._generations = context.generations
        self._generation_name = self.names.generation(token)
        self._generation = context.generations.get(token, b"")
        self._blocks: dict[bytes, TierBlock] = {}  # the blocks to read, by their names
        self._counts: dict[TierBlock, int] = {}
        self._split: list[TierBlock] = []
        self._max_total = 0

    def _by_name(self, blocks: Iterable[TierBlock]) -> dict[bytes, TierBlock]:
        counter, generation, token = self.names.counter, self._generation, self.token
        return {counter(block, generation, token): block for block in blocks}

    def missing(self, changes: Sequence[Correction] | None = None) -> Sequence[bytes]:
        blocks: Iterable[TierBlock] = cover(self._sizes, self.algorithm.span, self._bucket)
        if changes is not None:
            blocks = [self._fine_block(change) for change in changes if change.consumed]
        self._blocks = self._by_name(blocks)
        return (self._generation_name, *self._blocks)

    def _fine_block(self, change: Correction) -> TierBlock:
        at = self.now if change.consumed is None else change.consumed.at_us
        return TierBlock(0, at // self.algorithm.precision)

    def load(self, values: Mapping[bytes, StoredValue]) -> None:
        for block in self._split:
            self._replace(block, _counts(values, self._by_name(self._parts(block))))
        self._split = []
        if not self.is_loaded:
            generation = self._generation_in(values)
            if generation != self._generation:
                # Another process has reset the key since this process knew its generation.
                self._generation = self._generations[self.token] = generation
                return
            self.is_loaded = True
            self._counts = _counts(values, self._blocks)
        self.state = self._series()

    def _generation_in(self, values: Mapping[bytes, StoredValue]) -> bytes:
        stored = values.get(self._generation_name)
        return b"." + stored.value if stored else b""

    def _series(self) -> Series | None:
        """Build the state; each block counts in its last bucket."""
        merged: dict[int, int] = {}
        for bucket, count in sorted((self._end(block), count) for block, count in self._counts.items()):
            merged[bucket] = merged.get(bucket, 0) + count
        if not merged:
            return None
        *buckets, last = merged
        *totals, total = accumulate(merged.values())
        return Series(array("q", buckets), array("q", totals), 0, len(buckets), 0, last, total)

    def _end(self, block: TierBlock) -> int:
        """Return the last bucket of a block. Blocks ahead of now count as now."""
        size = self._sizes[block.tier]
        return min(self._bucket, block.number * size + size - 1)

    def ambiguous(self, decisions: Sequence[Decision]) -> Sequence[bytes]:
        precision, span = self.algorithm.precision, self.algorithm.span
        buckets = {(self.now + decision.retry_us) // precision - span for decision in decisions if decision.retry_us}
        if any(decision.reset_us for decision in decisions):
            buckets.add(max(map(self._end, self._counts), default=0))
        coarse = [block for block in self._counts if block.tier and self._end(block) in buckets]
        self._split = coarse[:_MAX_PARTS]
        return [name for block in self._split for name in self._by_name(self._parts(block))]

    def _parts(self, block: TierBlock) -> list[TierBlock]:
        first = block.number * _FACTOR
        return [TierBlock(block.tier - 1, number) for number in range(first, first + _FACTOR)]

    def _replace(self, block: TierBlock, parts: dict[TierBlock, int]) -> None:
        """Replace a block by its parts. The newest part takes the changes of other clients since the first read."""
        total = self._counts.pop(block)
        newest = self._parts(block)[-1]
        for part, count in parts.items():
            if used := min(total, count):
                self._counts[part], newest = used, part
                total -= used
        if total:
            self._counts[newest] = self._counts.get(newest, 0) + total

    def consume(self, state: Any, decisions: Sequence[Decision]) -> KeyCommands:
        cost = sum(decision.hit[2] for decision in decisions)
        self._max_total = max(sum(self._counts.values()) + cost, min(decision.limit for decision in decisions))
        return KeyCommands(self.server, self._add(self._bucket, cost), (self._generation_name, *self._blocks))

    def _tiers_of(self, bucket: int) -> list[TierBlock]:
        return [TierBlock(tier, bucket // size) for tier, size in enumerate(self._sizes)]

    def _add(self, bucket: int, cost: int) -> list[bytes]:
        commands = []
        for name, (tier, _) in self._by_name(self._tiers_of(bucket)).items():
            # The block may last for its whole size, and counts for a period after that.
            lifetime = self.algorithm.period + self._sizes[tier] * self.algorithm.precision
            commands += [write(b"add", name, b"0", expiry(lifetime, self.is_explicit)), command(b"incr", name, cost)]
        return commands

    def correct(self, changes: Sequence[Correction]) -> KeyCommands | None:
        commands: list[bytes] = []
        for change in changes:
            block = self._fine_block(change)
            count = self._counts.get(block, 0)
            if change.consumed is None:
                commands += self._add(block.number, change.cost)
                self._counts[block] = count + change.cost
            elif back := min(count, change.cost):
                commands += [command(b"decr", name, back) for name in self._by_name(self._tiers_of(block.number))]
                self._counts[block] = count - back
        return KeyCommands(self.server, commands) if commands else None

    def succeeded(self, reply: KeyReply) -> bool:
        is_current = self._generation_in(reply.values) == self._generation
        return is_current and sum(_counts(reply.values, self._blocks).values()) <= self._max_total


def _counts(values: Mapping[bytes, StoredValue], blocks: Mapping[bytes, TierBlock]) -> dict[TierBlock, int]:
    """Return the counts of the blocks that are not empty."""
    try:
        counts = [(block, int(values[name].value)) for name, block in blocks.items() if name in values]
    except ValueError as error:
        raise ProtocolError(f"a value that is no counter: {error}") from error
    return {block: count for block, count in counts if count}


@lru_cache(1024)
def cover(sizes: tuple[int, ...], span: int, bucket: int) -> tuple[TierBlock, ...]:
    """Return the blocks from the oldest bucket in the window to the block after the largest block of now."""
    blocks, tier = [], 0
    at, end = bucket - span + 1, (bucket // sizes[-1] + 2) * sizes[-1]
    while at < end:
        while tier + 1 < len(sizes) and at % sizes[tier + 1] == 0:
            tier += 1
        blocks.append(TierBlock(tier, at // sizes[tier]))
        at += sizes[tier]
    return tuple(blocks)


@lru_cache(1024)
def tiers(span: int) -> tuple[int, ...]:
    """Return the sizes of the tiers in buckets, smallest first: each 60 times the one before, the last at most 64."""
    sizes = [1]
    while span > _MAX_BLOCKS * sizes[-1]:
        sizes.append(_FACTOR * sizes[-1])
    return tuple(sizes)
