"""``ChainLink``: a store in front of another store. The rejection cache, leases and failover are links of one chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...receipt import Correction
from ...stores import Store

if TYPE_CHECKING:
    from ...algorithms.limit import Limit


class ChainLink(Store):
    """Handles ``apply`` and ``aapply``, and passes all other calls on to ``store``.

    The decisions of a link may be fewer than the hits. Each decision has its own hit.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def check(self, limit: Limit) -> None:
        self.store.check(limit)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self.counted_by(changes).correct(changes, now)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return await self.counted_by(changes).acorrect(changes, now)

    def counted_by(self, changes: Sequence[Correction]) -> Store:
        """Return the store that counted the hits of one verdict."""
        return self.store

    def forget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            self.store.forget(keys)
        finally:
            self.forget_here(keys)

    async def aforget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        try:
            await self.store.aforget(keys)
        finally:
            self.forget_here(keys)

    def forget_here(self, keys: Iterable[str]) -> None:
        """Forget what this link itself holds of the keys, even when the store is unreachable."""

    def close(self) -> None:
        self.store.close()

    async def aclose(self) -> None:
        await self.store.aclose()
