"""What a store is: it keeps states and makes changes atomic. It knows nothing of HTTP or rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..decision import Change, Decision, Hit

__all__ = ["Store"]


class Store(ABC):
    """Where states live.

    ``now`` is the time in whole microseconds when the limiter was given a clock, else None: the store's own.
    The ``a`` methods are the same on an event loop; a store that does no I/O leaves them as they are.
    """

    @abstractmethod
    def apply(self, hits: Sequence[Hit], now: int | None = None, spend: bool = True) -> list[Decision]:
        """Decide all hits at one instant and commit all or none; with ``spend=False`` commit nothing.

        A refusal of a shadow limit refuses nobody. When the request is refused, the hits that would have
        passed report a look (cost 0), and only what a log counts of its own refusals is written.
        """

    @abstractmethod
    def correct(self, changes: Sequence[Change], now: int | None = None) -> list[int]:
        """Carry the changes out; the store's time of each, in microseconds."""

    @abstractmethod
    def forget(self, keys: Iterable[str]) -> None:
        """Make the keys fresh."""

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, spend: bool = True) -> list[Decision]:
        return self.apply(hits, now, spend)

    async def acorrect(self, changes: Sequence[Change], now: int | None = None) -> list[int]:
        return self.correct(changes, now)

    async def aforget(self, keys: Iterable[str]) -> None:
        self.forget(keys)

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Let go of connections and files; harmless when called twice."""

    async def aclose(self) -> None:
        self.close()
