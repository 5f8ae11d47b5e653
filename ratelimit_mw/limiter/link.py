"""``ChainLink``: a store in front of another store. The rejection cache, leases and failover are links of one chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..decision import Correction, Decision, Hit
from ..stores import Store

if TYPE_CHECKING:
    from ..algorithms.limit import Limit

__all__ = ["ChainLink"]


class ChainLink(Store):
    """Passes each call on to ``store``; a subclass overrides the calls that it handles itself.

    ``apply`` of a link may return fewer decisions than hits. Each decision has its own hit.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def check(self, limit: Limit) -> None:
        self.store.check(limit)

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self.store.apply(hits, now, consume)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return await self.store.aapply(hits, now, consume)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self.store.correct(changes, now)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self.store.acorrect(changes, now)

    def forget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self.store.forget(keys)
        self.forget_here(keys)

    async def aforget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self.store.aforget(keys)
        self.forget_here(keys)

    def forget_here(self, keys: Sequence[str]) -> None:
        """Forget what this link itself holds of the keys."""

    def ping(self) -> None:
        self.store.ping()

    async def aping(self) -> None:
        await self.store.aping()

    def close(self) -> None:
        self.store.close()

    async def aclose(self) -> None:
        await self.store.aclose()
