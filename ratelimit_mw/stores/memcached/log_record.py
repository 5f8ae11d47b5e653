"""sliding-window-log in chunks: a head that is swapped on each hit, and sealed chunks that never change.

The head holds spans: single hits, and for each chunk of 64 its first and last time and its sum. The newest hits stand
in the head by themselves; when there are 128, the older half is sealed. So a hit rewrites some kilobytes at most where
the log holds 10,000, and reads one chunk for 64 hits, when the window's edge comes to it. Everything hangs on the
swap of the head: a chunk that lost its race is never seen. A chunk that the server has thrown away counts whole until
its last hit leaves.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...algorithms.limit import Limit
from ...algorithms.window_log import RejectionCountingLog, Series, TieredWindow
from ...decision import Correction, Decision
from .client.protocol import GONE, STORED, Ask, Found, Told, WireError, store
from .keys import Life, Names
from .partial_sums import decisive, series_of
from .record import Cell

__all__ = ["LogCell"]

CHUNK: Final = 64
_SPAN: Final = struct.Struct("<qqqq")
_HIT: Final = struct.Struct("<qq")


class Span(NamedTuple):
    """``cost`` consumed from ``first`` to ``last``: a chunk by its number, or with 0 what was consumed at one time."""

    chunk: int
    first: int
    last: int
    cost: int


class LogCell(Cell):
    """The log of one key."""

    algorithm: TieredWindow

    def __init__(self, limit: Limit, token: bytes, names: Names, now: int) -> None:
        super().__init__(limit, token, names, now)
        assert isinstance(limit.algorithm, TieredWindow)
        self.algorithm = limit.algorithm
        self._counts_rejected = isinstance(limit.algorithm, RejectionCountingLog)
        self._head = names.state(token)
        self._found: Found | None = None
        self._read = False
        self._spans: list[Span] = []
        self._parts: dict[int, list[Span]] = {}
        self._asked: list[Span] = []

    # -- reading -------------------------------------------------------------------------------------------

    def wants(self) -> Sequence[bytes]:
        if not self._read:
            return (self._head,)
        edge = self._edge()
        return self._ask(span for span in self._spans if span.first <= edge < span.last)

    def wants_for(self, changes: Sequence[Correction]) -> Sequence[bytes]:
        if not self._read:
            return (self._head,)
        times = [change.consumed.at_us for change in changes if change.consumed]
        return self._ask(span for span in self._spans if any(span.first <= at <= span.last for at in times))

    def _ask(self, spans: Iterable[Span]) -> Sequence[bytes]:
        """The names of the chunks among these that are not known yet."""
        self._asked = [span for span in spans if span.chunk and span.chunk not in self._parts]
        return [self.names.chunk(span.chunk, self.token) for span in self._asked]

    def take(self, values: Mapping[bytes, Found]) -> None:
        for span in self._asked:
            found = values.get(self.names.chunk(span.chunk, self.token))
            hits = _unpacked(_HIT, found.value) if found else [(span.last, span.cost)]
            self._parts[span.chunk] = [Span(0, at, at, cost) for at, cost in hits]
        if not self._read:
            self._read = True
            self._found = values.get(self._head)
            data = self._found.value if self._found else b""
            self._spans = [Span(*numbers) for numbers in _unpacked(_SPAN, data)]

    def _edge(self) -> int:
        """The latest time that is out of sight."""
        newest = self._spans[-1].last if self._spans else 0
        return max(self.now, newest) - self.algorithm.period

    @property
    def state(self) -> Series | None:
        edge = self._edge()
        parts = [part for span in self._spans for part in self._parts.get(span.chunk, (span,))]
        return series_of((span.last, span.cost) for span in parts if span.last > edge)

    def vague(self, decision: Decision, cost: int) -> Sequence[bytes]:
        # The newest hit needs no reading: a span knows its last time.
        times = decisive(self.algorithm, decision, self.now, -1)
        spans = [span for span in self._spans if span.last in times]
        if self._counts_rejected and not decision.allowed:
            # What is no longer needed once this one is in may end in the midst of a chunk.
            spans += _newest(self._added(self._spans, decision.at_us, cost), self.algorithm.amount)[:1]
        return self._ask(spans)

    # -- writing -------------------------------------------------------------------------------------------

    def consume(self, kept: Any, decision: Decision, cost: int, life: Life) -> Ask:
        spans = self._added(self._spans, decision.at_us, cost)
        if self._counts_rejected and not decision.allowed:
            first, *rest = _newest(spans, self.algorithm.amount)
            spans = _newest([*self._parts.get(first.chunk, (first,)), *rest], self.algorithm.amount)
        return self._written(spans, life(max(decision.reset_us, self.algorithm.period)))

    def _added(self, spans: list[Span], at: int, cost: int) -> list[Span]:
        """With one more hit, and without what is out of sight by then."""
        edge = at - self.algorithm.period
        kept: list[Span] = []
        for span in spans:
            if span.first > edge:
                kept.append(span)
            elif span.last > edge:
                kept += [part for part in self._parts.get(span.chunk, (span,)) if part.last > edge]
        if kept and kept[-1].chunk == 0 and kept[-1].last == at:
            cost += kept.pop().cost
        return [*kept, Span(0, at, at, cost)]

    def correct(self, changes: Sequence[Correction], life: Life) -> Ask | None:
        spans = self._spans
        for _, _, cost, consumed in changes:
            if consumed is None:
                newest = spans[-1].last if spans else self.now
                spans = self._added(spans, max(self.now, newest), cost)
            else:
                spans = self._without(spans, consumed.at_us, cost)
        if spans == self._spans:
            return None
        if not spans:
            return Ask(self.token, (store(self._head, b"", GONE, self._found),))
        matters = spans[-1].last + self.algorithm.period - self.now
        return self._written(spans, life(max(matters, self.algorithm.period)))

    def _without(self, spans: list[Span], at: int, cost: int) -> list[Span]:
        """With ``cost`` less at that time. A chunk that held it is taken apart."""
        parts = [
            part
            for span in spans
            for part in (self._parts.get(span.chunk, (span,)) if span.first <= at <= span.last else (span,))
        ]
        left: list[Span] = []
        for part in parts:
            if part.chunk == 0 and part.last == at and cost:
                back = min(cost, part.cost)
                cost -= back
                part = part._replace(cost=part.cost - back)
            if part.cost:
                left.append(part)
        return left

    def _written(self, spans: list[Span], expiry: int) -> Ask:
        lines: list[bytes] = []
        while (sealable := _sealable(spans)) is not None:
            hits = spans[sealable]
            number = secrets.randbits(62) + 1
            name = self.names.chunk(number, self.token)
            value = b"".join(_HIT.pack(hit.last, hit.cost) for hit in hits)
            lines.append(store(name, value, expiry, None))
            spans[sealable] = [Span(number, hits[0].first, hits[-1].last, sum(hit.cost for hit in hits))]
        value = b"".join(_SPAN.pack(*span) for span in spans)
        return Ask(self.token, (*lines, store(self._head, value, expiry, self._found)))

    def won(self, told: Told) -> bool:
        return told.lines[-1] == STORED


def _sealable(spans: list[Span]) -> slice | None:
    """The oldest hits that stand by themselves, once there are twice as many as a chunk holds in one place."""
    start = 0
    for i, span in enumerate(spans):
        if span.chunk:
            start = i + 1
        elif i - start + 1 == 2 * CHUNK:
            return slice(start, start + CHUNK)
    return None


def _newest(spans: list[Span], cost: int) -> list[Span]:
    """Without the oldest as long as the rest reaches ``cost``."""
    total, start = sum(span.cost for span in spans), 0
    while total - spans[start].cost >= cost:
        total -= spans[start].cost
        start += 1
    return spans[start:]


def _unpacked(kind: struct.Struct, data: bytes) -> list[tuple[Any, ...]]:
    if len(data) % kind.size:
        raise WireError(f"a part of a log that is cut short, of {len(data)} bytes")
    return list(kind.iter_unpack(data))
