"""A store in front of a store passes on what it does not change."""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.limiter.chain.link import ChainLink
from ratelimit_mw.stores import open_store


class Link(ChainLink):
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self.store.apply(hits, now, consume)


def test_corrections_go_to_the_next_store() -> None:
    store = open_store("memory://")
    link = Link(store)
    assert link.counted_by([]) is store
    assert link.correct([]) == []
