"""What a store is: it keeps states and makes changes atomic. It knows nothing of HTTP or rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..decision import Correction, Decision, Hit

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

__all__ = ["Store", "decide_all"]


def decide_all(hits: Sequence[Hit], states: Sequence[Any], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
    """All hits of a request at one instant: the decisions, and what to write when it is to be consumed.

    A rejection of a shadow limit rejects nobody. When the request is rejected, the hits that would have passed report
    a look (cost 0), and only what a log counts of its own rejections is to be written. Pure: every store that can
    read, decide and write atomically is this function between its reading and its writing.
    """
    allowed = True
    decisions: list[Decision] = []
    writes: list[tuple[Hit, Any]] = []
    for hit, state in zip(hits, states, strict=True):
        kept, decision = hit[0].decide(state, now, hit[2])
        decision.hit = hit
        decisions.append(decision)
        if kept is not state:
            writes.append((hit, kept))
        if not decision.allowed and not hit[0].shadow:
            allowed = False
    return (decisions, writes) if allowed else _rejected(hits, states, decisions, writes, now)


def _rejected(
    hits: Sequence[Hit], states: Sequence[Any], decisions: list[Decision], writes: list[tuple[Hit, Any]], now: int
) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
    rejecting = {id(hit) for hit, decision in zip(hits, decisions, strict=True) if not decision.allowed}
    for i, (hit, state) in enumerate(zip(hits, states, strict=True)):
        if id(hit) not in rejecting:
            decisions[i] = hit.limit.decide(state, now, 0)[1]
            decisions[i].hit = hit
    return decisions, [(hit, kept) for hit, kept in writes if id(hit) in rejecting]


class Store(ABC):
    """Where states live.

    A key is ``limit.prefix`` and what tells clients apart: any text, also with spaces, braces and control characters;
    a store that cannot hold it as it is hashes it. States are kept at least until ``reset_us`` after their last
    change, a day at the least when the caller gives ``now``. What goes wrong raises ``StoreError``.

    ``now`` is the time in whole microseconds when the limiter was given a clock, else None: the store's own.
    The ``a`` methods are the same on an event loop; a store that does no I/O leaves them as they are.
    """

    def check(self, limit: Limit) -> None:  # noqa: B027 - most stores can keep every limit
        """Raise ``ConfigError`` for a limit that this store cannot keep. The limiter calls it at the start."""

    @abstractmethod
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        """Decide all hits at one instant and commit all or none, as ``decide_all`` says; a peek commits nothing."""

    @abstractmethod
    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        """Carry the changes out; the store's time of each, in microseconds."""

    @abstractmethod
    def forget(self, keys: Iterable[str]) -> None:
        """Make the keys fresh."""

    def ping(self) -> None:
        """``StoreError`` unless the store answers. Asked when it did not, off the path of requests."""
        self.forget([""])

    async def aping(self) -> None:
        await self.aforget([""])

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self.apply(hits, now, consume)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self.correct(changes, now)

    async def aforget(self, keys: Iterable[str]) -> None:
        self.forget(keys)

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Let go of connections and files; harmless when called twice."""

    async def aclose(self) -> None:
        self.close()
