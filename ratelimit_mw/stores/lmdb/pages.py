"""The states of logs and tiered windows as records: a head with the newest buckets, and pages of older ones.

A hit writes the head alone, at most a kilobyte, and one page every 64 entries. It reads the head, the page where the
window begins, and, where it has to search, a page for each doubling of their number. Knows no transaction: pages are
read and written by the functions that it is given.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, cast

from ...algorithms.window_log import Series

__all__ = ["PAGE", "Pages", "dump", "load", "pages_of"]

PAGE: Final = 64
_DROPPED_AT_ONCE: Final = 4  # pages out of sight that one hit deletes; the sweep finds what is left
_REBASED_FROM: Final = 1 << 62
_LONG_AGO: Final = -(1 << 62)
_HEAD: Final = Struct("<QQIIqqqq")
_BASE: Final = Struct("<q")


class Pages(Protocol):
    """What keeps pages: by series and number, each read whole."""

    def read_page(self, series: int, number: int, /) -> bytes | None: ...
    def write_page(self, series: int, number: int, data: bytes, /) -> None: ...
    def drop_page(self, series: int, number: int, /) -> None: ...


class _Head(NamedTuple):
    """The fields of a record before its newest buckets. Places count from the first page that is kept.

    ``tail_base`` is the running total before the newest buckets, ``base`` that before ``start``.
    """

    series: int
    first: int
    full: int
    start: int
    base: int
    tail_base: int
    open: int
    total: int


_Columns: TypeAlias = "tuple[array[int], array[int]]"
"""Numbers and running totals of buckets."""
_Parts: TypeAlias = "tuple[_Head, _Columns]"


class _Pages:
    """The closed buckets of a series: ``count`` full pages, and the newest in arrays."""

    def __init__(self, read: Callable[[int, int], bytes | None], head: _Head, tail: _Columns) -> None:
        self.read = read
        self.head = head
        self.tail = tail
        self._seen: dict[int, _Columns] = {}

    def page(self, number: int) -> _Columns:
        """The buckets and totals of a page. One that was swept held only what has long been out of sight."""
        if number not in self._seen:
            data = self.read(self.head.series, self.head.first + number)
            if data is None:
                totals = array("q", [self.base(number + 1)]) * PAGE
                self._seen[number] = array("q", [_LONG_AGO]) * PAGE, totals
            else:
                self._seen[number] = _columns(data, _BASE.size)
        return self._seen[number]

    def base(self, number: int) -> int:
        """The running total before a page."""
        for later in range(number, self.head.full):
            data = self.read(self.head.series, self.head.first + later)
            if data is not None:
                base: int = _BASE.unpack_from(data)[0]
                return base
        return self.head.tail_base

    def until(self, end: int) -> _Pages:
        """The same up to the place ``end``, with newest buckets of its own."""
        count = min(self.head.full, end // PAGE)
        within = slice(0, end - count * PAGE)
        if count == self.head.full:
            tail, base = self.tail, self.head.tail_base
        else:
            tail, base = self.page(count), self.base(count)
        book = _Pages(self.read, self.head._replace(full=count, tail_base=base), (tail[0][within], tail[1][within]))
        book._seen = self._seen
        return book


class _Column:
    """The numbers (0) or the running totals (1) of a book."""

    __slots__ = ("_paged", "_tail", "_which", "book")

    def __init__(self, book: _Pages, which: int) -> None:
        self.book = book
        self._which = which
        self._tail = book.tail[which]
        self._paged = book.head.full * PAGE

    def __len__(self) -> int:
        return self._paged + len(self._tail)

    def __getitem__(self, place: int, /) -> int:
        if place >= self._paged:
            return self._tail[place - self._paged]
        return self.book.page(place // PAGE)[self._which][place % PAGE]

    def append(self, number: int, /) -> None:
        self._tail.append(number)


class _PagedSeries(Series):
    """A series whose columns are those of a book."""

    __slots__ = ()

    @classmethod
    def of_book(cls, book: _Pages, start: int, base: int, last: int, total: int) -> Self:
        buckets, totals = _Column(book, 0), _Column(book, 1)
        return cls(buckets, totals, start, len(buckets), base, last, total)

    def since(self, horizon: int) -> Series:
        """As of arrays, but the end of what leaves is looked for from the beginning on, where it mostly is."""
        buckets, totals, start, end, _, last, total = self
        if last <= horizon:
            return Series.of(last, 0)
        if start == end or buckets[start] > horizon:
            return self
        near, step = (start // PAGE + 1) * PAGE, PAGE
        while near < end and buckets[near - 1] <= horizon:
            near, step = near + step, step * 2
        start = bisect_right(buckets, horizon, start, min(near, end))
        return type(self)(buckets, totals, start, end, totals[start - 1], last, total)

    def _moved(self) -> Self:
        return self.of_book(
            cast("_Column", self.buckets).book.until(self.end), self.start, self.base, self.open, self.total
        )


def load(data: bytes, read: Callable[[int, int], bytes | None]) -> Series:
    """The state from its record; ``ValueError`` for anything else."""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % 16:
        raise ValueError(f"expected the record of a series, got {len(data)} bytes")
    head = _Head(*_HEAD.unpack_from(data))
    tail = _columns(data, _HEAD.size)
    if head.full == 0:
        return Series(*tail, head.start, len(tail[0]), head.base, head.open, head.total)
    return _PagedSeries.of_book(_Pages(read, head, tail), head.start, head.base, head.open, head.total)


def dump(state: Series, pages: Pages) -> bytes:
    """The record of a state, once its full pages are written and those out of sight are gone."""
    if state.total > _REBASED_FROM:
        state = Series.from_entries(state.entries()) or state
    head, tail = _paged(state, state.buckets.book) if isinstance(state.buckets, _Column) else _flat(state)
    head, tail = _spilled(head, tail, pages)
    head, (buckets, totals) = _without_the_gone(head, tail, pages)
    return _HEAD.pack(*head) + buckets.tobytes() + totals.tobytes()


def pages_of(data: bytes) -> list[tuple[int, int]]:
    """Series and number of all pages that a record stands on."""
    head = _Head(*_HEAD.unpack_from(data))
    return [(head.series, head.first + number) for number in range(head.full)]


def _paged(state: Series, book: _Pages) -> _Parts:
    """The head and the newest buckets of a state that has pages."""
    if state.end != book.head.full * PAGE + len(book.tail[0]):
        book = book.until(state.end)
    series, first, full, _, _, tail_base, _, _ = book.head
    return _Head(series, first, full, state.start, state.base, tail_base, state.open, state.total), book.tail


def _flat(state: Series) -> _Parts:
    """Those of a state in arrays: all that is in sight of it."""
    seen = slice(state.start, state.end)
    head = _Head(0, 0, 0, 0, state.base, state.base, state.open, state.total)
    return head, (cast("array[int]", state.buckets)[seen], cast("array[int]", state.totals)[seen])


def _spilled(head: _Head, tail: _Columns, pages: Pages) -> _Parts:
    """With full pages of the newest buckets written."""
    buckets, totals = tail
    while len(buckets) >= PAGE:
        if not head.series:
            head = head._replace(series=int.from_bytes(os.urandom(8), "big") | 1)
        data = _BASE.pack(head.tail_base) + buckets[:PAGE].tobytes() + totals[:PAGE].tobytes()
        pages.write_page(head.series, head.first + head.full, data)
        head = head._replace(full=head.full + 1, tail_base=totals[PAGE - 1])
        buckets, totals = buckets[PAGE:], totals[PAGE:]
    return head, (buckets, totals)


def _without_the_gone(head: _Head, tail: _Columns, pages: Pages) -> _Parts:
    """With the first place on the first page that is kept."""
    gone = min(head.start // PAGE, head.full)
    if not gone and (head.full or not head.start):
        return head, tail
    for number in range(min(gone, _DROPPED_AT_ONCE)):
        pages.drop_page(head.series, head.first + number)
    head = head._replace(first=head.first + gone, full=head.full - gone, start=head.start - gone * PAGE)
    if head.full or not head.start:
        return head, tail
    seen = slice(head.start, None)
    return head._replace(start=0, tail_base=head.base), (tail[0][seen], tail[1][seen])


def _columns(data: bytes, offset: int) -> _Columns:
    """The two halves of what comes after ``offset``."""
    middle = offset + (len(data) - offset) // 2
    return array("q", data[offset:middle]), array("q", data[middle:])
