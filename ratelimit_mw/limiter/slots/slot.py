"""``Slot``: the block of code that holds the slots of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...decision import Verdict
from ...keys.features import Features

if TYPE_CHECKING:
    from ..limiter import Limiter


class Slot:
    """Holds the slots of a request while the block runs. It may be entered again, even while it is held."""

    def __init__(self, limiter: Limiter, features: Features, cost: int | None) -> None:
        self._limiter = limiter
        self._request = features, cost
        self._held: list[Verdict] = []

    def __enter__(self) -> Verdict:
        return self._enter(self._limiter.hit(*self._request))

    async def __aenter__(self) -> Verdict:
        return self._enter(await self._limiter.ahit(*self._request))

    def _enter(self, verdict: Verdict) -> Verdict:
        verdict.raise_for_limit()
        self._limiter.hold(verdict)
        self._held.append(verdict)
        return verdict

    def __exit__(self, *_: object) -> None:
        self._limiter.conclude(self._held.pop(), None)

    async def __aexit__(self, *_: object) -> None:
        await self._limiter.aconclude(self._held.pop(), None)
