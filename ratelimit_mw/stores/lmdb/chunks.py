"""Logs and tiered windows as records: the newest buckets in the record itself, older ones in chunks of 64.

A hit writes the record, at most a kilobyte, and every 64th hit a chunk. A hit reads the record and the chunk in which
the window begins. Whole arrays are as fast up to 1,000 buckets, and 16 times slower with 10,000.

Buckets are counted from the first one of the series on, so a chunk keeps its number.
"""

from __future__ import annotations

import os
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final, Self, TypeAlias, cast

from ...algorithms.window_log import Series
from ...errors import StoreError
from .keys import EXPIRY, chunk_name

if TYPE_CHECKING:
    from .records import Records

CHUNK: Final = 64
_BYTES: Final = CHUNK * 16
_RECORD: Final = Struct("<QQQqqq")
"""Series, start, end, base, open, total. Then the numbers and the totals of the buckets after the last chunk."""
_DELETED_AT_ONCE: Final = 4  # The sweep deletes the rest.
_REBASED_ABOVE: Final = 1 << 62

_Arrays: TypeAlias = "tuple[array[int], array[int]]"
"""Bucket numbers and running totals."""


class _Chunks:
    """The closed buckets of a series: ``full`` chunks from the number ``first`` on, then arrays of the newest."""

    def __init__(self, records: Records, series: int, first: int, full: int, newest: _Arrays) -> None:
        self.records = records
        self.series = series
        self.first = first
        self.full = full
        self.newest = newest
        self._loaded: dict[int, memoryview[int]] = {}

    def chunk(self, number: int) -> memoryview[int]:
        """Return the 64 bucket numbers of a chunk, then the 64 totals."""
        chunk = self._loaded.get(number)
        if chunk is None:
            # A long log is the only work whose length depends on data, so the time budget is checked here.
            if self.records.is_over():
                raise StoreError("the time budget (store_timeout) ended in the transaction, so nothing was changed")
            data = self.records.txn.get(chunk_name(self.series, self.first + number), b"")[EXPIRY:]
            if len(data) != _BYTES:
                raise ValueError(f"expected a chunk of {_BYTES} bytes, got {len(data)}")
            chunk = self._loaded[number] = memoryview(data).cast("q")
        return chunk

    def until(self, end: int) -> _Chunks:
        """The buckets before the place ``end``."""
        if end == self.full * CHUNK + len(self.newest[0]):
            return self
        full = min(self.full, end // CHUNK)
        arrays = self.newest if full == self.full else _halves(self.chunk(full).tobytes())
        kept = slice(0, end - full * CHUNK)
        return _Chunks(self.records, self.series, self.first, full, (arrays[0][kept], arrays[1][kept]))


class _ChunkColumn:
    """The bucket numbers (0) or the totals (1), by place."""

    def __init__(self, chunks: _Chunks, which: int) -> None:
        self.chunks = chunks
        self._offset = which * CHUNK
        self._newest = chunks.newest[which]
        self._in_chunks = chunks.full * CHUNK

    def __len__(self) -> int:
        return self._in_chunks + len(self._newest)

    def __getitem__(self, place: int, /) -> int:
        if place >= self._in_chunks:
            return self._newest[place - self._in_chunks]
        return self.chunks.chunk(place // CHUNK)[self._offset + place % CHUNK]

    def append(self, number: int, /) -> None:
        self._newest.append(number)


class ChunkedSeries(Series):
    """A series whose columns read a chunk when they need it."""

    __slots__ = ()

    @classmethod
    def over(cls, chunks: _Chunks, start: int, base: int, last: int, total: int) -> Self:
        buckets, totals = _ChunkColumn(chunks, 0), _ChunkColumn(chunks, 1)
        return cls(buckets, totals, start, len(buckets), base, last, total)

    def _copy(self) -> Self:
        chunks = cast("_ChunkColumn", self.buckets).chunks.until(self.end)
        return self.over(chunks, self.start, self.base, self.open, self.total)


def load(data: bytes, records: Records) -> Series:
    """Return the state of a record; ``ValueError`` for anything else."""
    if len(data) < _RECORD.size or len(data) % 16:
        raise ValueError(f"expected the record of a log, got {len(data)} bytes")
    series, start, end, base, last, total = _RECORD.unpack_from(data)
    newest = _halves(data[_RECORD.size :])
    if start > end or end % CHUNK != len(newest[0]):
        raise ValueError(f"expected the record of a log, got buckets {start} to {end} with {len(newest[0])} of them")
    first, start = divmod(start, CHUNK)
    full = end // CHUNK - first
    if full:
        return ChunkedSeries.over(_Chunks(records, series, first, full, newest), start, base, last, total)
    return Series(*newest, start, len(newest[0]), base, last, total)


def dump(state: Series, records: Records, expiry: bytes) -> bytes:
    """Return the record of a state. Writes full chunks and deletes a few that have left the window."""
    if state.total > _REBASED_ABOVE:
        state = Series.from_entries(state.entries()) or state
    chunks, start = _chunks_of(state, records)
    series, first, full = chunks.series, chunks.first, chunks.full
    for number in range(min(start // CHUNK, full, _DELETED_AT_ONCE)):
        records.txn.delete(chunk_name(series, first + number))
    buckets, totals = chunks.newest
    while len(buckets) >= CHUNK:
        series = series or int.from_bytes(os.urandom(8), "big") | 1
        data = expiry + buckets[:CHUNK].tobytes() + totals[:CHUNK].tobytes()
        records.txn.put(chunk_name(series, first + full), data)
        full, buckets, totals = full + 1, buckets[CHUNK:], totals[CHUNK:]
    end = (first + full) * CHUNK + len(buckets)
    record = _RECORD.pack(series, first * CHUNK + start, end, state.base, state.open, state.total)
    return record + buckets.tobytes() + totals.tobytes()


def _chunks_of(state: Series, records: Records) -> tuple[_Chunks, int]:
    """Return the buckets of a state, and the place where it starts in them."""
    if isinstance(state.buckets, _ChunkColumn):
        return state.buckets.chunks.until(state.end), state.start
    seen = slice(state.start, state.end)
    buckets, totals = cast("_Arrays", (state.buckets, state.totals))
    return _Chunks(records, 0, 0, 0, (buckets[seen], totals[seen])), 0


def _halves(data: bytes) -> _Arrays:
    middle = len(data) // 2
    return array("q", data[:middle]), array("q", data[middle:])
