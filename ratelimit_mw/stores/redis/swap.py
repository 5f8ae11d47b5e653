"""Hits of algorithms without Lua: decided here on the state that was read, and written if that is unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ...algorithms.limit import Limit
from ...decision import Decision, Hit
from .message import PEEK, HitOperation, undecodable
from .packing import Packing, pack_text
from .script import SWAP

_LONGEST_US: Final = 1 << 53


def rejects(decisions: Iterable[Decision]) -> bool:
    """Return whether a request with these decisions is rejected."""
    return any(not decision.allowed and not decision.source.shadow for decision in decisions)


class Swap(NamedTuple):
    """A hit decided here: the arguments for swap.lua, the decision, and the decision of a peek."""

    packed: dict[str, Any]
    decision: Decision
    peek: Decision


class MixedHitOperation(HitOperation):
    """Hits of which some are decided here, by the states that were read at ``at``. The server decides the others."""

    def __init__(
        self,
        kind: int,
        hits: Sequence[Hit],
        names: Sequence[bytes],
        slot: int,
        now: int | None,
        at: int,
        swaps: dict[int, Swap],
    ) -> None:
        super().__init__(kind, hits, names, slot, now)
        self.now = at
        self._swaps = swaps

    def join(self, packing: Packing) -> None:
        for i, (limit, _, cost) in enumerate(self.items):
            if swap := self._swaps.get(i):
                number = packing.add(swap.packed, SWAP)
            else:
                number = packing.known.get(limit) or packing.number_of(limit)
            packing.numbers += (number, cost)

    def read(self, reply: Sequence[Any], start: int) -> int:
        end = super().read(reply, start)
        for i, swap in self._swaps.items():
            if swap.decision.retry_us is not None:  # the server knows the wait for a ban that begins
                swap.decision.retry_us = max(swap.decision.retry_us, self.result[i].retry_us or 0)
            self.result[i] = swap.decision
        self.stops = rejects(self.result)
        if self.stops or self.kind > PEEK:
            for i, swap in self._swaps.items():
                self.result[i] = swap.peek if swap.decision.allowed else swap.decision
        return end


def decide_here(hit: Hit, text: bytes | None, at: int) -> Swap:
    """Decide a hit on the state that the server has as a text."""
    limit, key, cost = hit
    state = load_state(limit, key, text)
    kept, decision = limit.decide(state, at, cost)
    peek = limit.decide(state, at, 0)[1]
    decision.hit = peek.hit = hit
    return Swap(pack_swap(limit, text, kept, kept is not state, decision), decision, peek)


def load_state(limit: Limit, key: str, text: bytes | None) -> Any:
    """Return the state of a text; ``StateError`` for a text that is none."""
    try:
        return None if text is None else limit.algorithm.load(text)
    except ValueError as error:
        raise undecodable(key) from error


def pack_swap(limit: Limit, expected: bytes | None, kept: Any, changes: bool, decision: Decision) -> dict[str, Any]:
    """Return the arguments for swap.lua, which leaves the state as it is when ``kept`` is False."""
    return {
        "kind": SWAP.name,
        "lasts": min(decision.reset_us, _LONGEST_US),
        "allowed": decision.allowed,
        "shadow": limit.shadow,
        **({"rule": limit.rule} if limit.ban else {}),
        "expected": pack_text(expected),
        "kept": pack_text(None if kept is None else limit.algorithm.dump(kept)) if changes else False,
    }
