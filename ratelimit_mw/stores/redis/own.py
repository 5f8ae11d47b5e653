"""Decide in this process where an algorithm has no Lua: on states that were read, and are written if unchanged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from ...decision import Decision, Hit
from ...errors import StateError, StoreError
from ..bytestore import ByteCall, Write
from ..ways import Way
from .call import SWAP, Call, swap_arguments
from .errors import MovingSlotError

_LEAST_MS: Final = 1_000
"""A state stays this long at least, as in the shell."""
_LONGEST_MS: Final = 10**14


class OwnCall(ByteCall):
    """A call for keys in one slot. ``ask`` returns the result of a call to Redis, ``place`` the name and slot of a key.

    With ``is_rejected``, another part of the request rejects it, so that nothing is consumed.
    """

    title = "Redis"

    def __init__(
        self,
        ask: Callable[[Call], Awaitable[Any]],
        place: Callable[[str], tuple[bytes, int]],
        way: Way,
        last: float,
        is_rejected: bool,
    ) -> None:
        self._ask, self._place, self._clock, self.last = ask, place, way.clock, last
        self.pause = way.pause  # type: ignore[method-assign]
        self._is_rejected = is_rejected
        self._has_replied = False

    def time(self) -> float:
        return self._clock.now

    async def load(self, keys: Sequence[str]) -> tuple[Sequence[bytes | None], int]:
        try:
            seconds, microseconds, *loaded = await self._ask(self._swap_call(keys, []))
        except StoreError as error:
            if not self._has_replied or isinstance(error, (StateError, MovingSlotError)):
                raise
            raise TimeoutError from error  # the server did reply: the request lost a race
        self._has_replied = True
        return loaded, int(seconds) * 1_000_000 + int(microseconds)

    async def swap(self, writes: Sequence[Write]) -> Collection[str]:
        arguments: list[Any] = []
        for _, data, before, lasts_us in writes:
            milliseconds = max(_LEAST_MS, min(-(-lasts_us // 1_000), _LONGEST_MS))
            arguments += swap_arguments(before, data, milliseconds)
        keys = [write.key for write in writes]
        return () if await self._ask(self._swap_call(keys, arguments)) == 1 else keys

    def _swap_call(self, keys: Sequence[str], arguments: Sequence[Any]) -> Call:
        placed = [self._place(key) for key in keys]
        return Call(SWAP, keys, [name for name, _ in placed], placed[0][1], *arguments)

    def decide(self, hits: Sequence[Hit], loaded: Sequence[Any], at: int) -> tuple[list[Decision], list[Write]]:
        decisions, writes = super().decide(hits, loaded, at)
        if not self._is_rejected or rejects(decisions):
            return decisions, writes
        looks, _ = super().decide([hit._replace(cost=0) for hit in hits], loaded, at)
        for look, hit in zip(looks, hits, strict=True):
            look.hit = hit
        return [look if one.allowed else one for one, look in zip(decisions, looks, strict=True)], []


def rejects(decisions: Sequence[Decision]) -> bool:
    """Return whether a request with these decisions is rejected."""
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)
