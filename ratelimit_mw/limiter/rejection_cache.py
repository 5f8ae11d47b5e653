"""Rejections remembered: a key that a shared store has just rejected is rejected here, without asking again.

Only what cannot change without this process knowing: no log that counts rejections, no slots, and never for less than
the cost that was rejected. Bounded: two tables that take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ..algorithms.window_log import RejectionCountingLog
from ..decision import Decision, Hit

__all__ = ["RejectionCache"]

_KEPT: Final = 50_000


class _Known(NamedTuple):
    noted: int
    until: int
    cost: int
    decision: Decision


class RejectionCache:
    """Remembers for a decision's ``retry_us``, at most ``span_us``; 0 remembers nothing."""

    everywhere: Final[WeakValueDictionary[int, RejectionCache]] = WeakValueDictionary()
    """Those of all limiters in this process, each under a number of its own."""

    def __init__(self, span_us: int) -> None:
        self._span = span_us
        self._young: dict[str, _Known] = {}
        self._old: dict[str, _Known] = {}
        self.everywhere[id(self)] = self

    def recall(self, hits: Sequence[Hit], now: int) -> tuple[list[Hit], list[Decision]] | None:
        """Of the hits that are known to be rejected now the one with the longest wait, with its decision as of now."""
        if not self._young and not self._old:
            return None
        known = [(hit, decision) for hit in hits if (decision := self._known(hit, now)) is not None]
        if not known or any(map(_counts_rejections, hits)):
            return None
        hit, decision = max(known, key=_wait)
        return [hit], [decision]

    def _known(self, hit: Hit, now: int) -> Decision | None:
        known = self._young.get(hit.key) or self._old.get(hit.key)
        if known is None or hit.cost < known.cost or now >= known.until or known.decision.source is not hit.limit:
            return None
        return _later(known.decision, hit, now - known.noted)

    def note(self, hits: Sequence[Hit], decisions: Sequence[Decision], now: int) -> None:
        """Learn from a rejected request; nothing where one of those that reject has to be asked each time."""
        if not self._span:
            return
        pairs = zip(hits, decisions, strict=True)
        rejecting = [(hit, decision) for hit, decision in pairs if not (decision.allowed or hit.limit.shadow)]
        if not all(decision.retry_us and _may_be_remembered(hit) for hit, decision in rejecting):
            return
        for hit, decision in rejecting:
            if len(self._young) >= _KEPT // 2:
                self._old, self._young = self._young, {}
            self._young[hit.key] = _Known(now, now + min(decision.retry_us or 0, self._span), hit.cost, decision)

    def consumed(self, hits: Sequence[Hit]) -> None:
        """An allowed request has changed what is left at these keys."""
        if self._young or self._old:
            self._drop(hit.key for hit in hits)

    def forget(self, keys: Sequence[str]) -> None:
        """These keys have got something back, for all limiters of this process."""
        for rejections in filter(None, [reference() for reference in self.everywhere.valuerefs()]):
            rejections._drop(keys)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


def _may_be_remembered(hit: Hit) -> bool:
    return not (hit.limit.counts_outcomes or hit.limit.quota.concurrent or _counts_rejections(hit))


def _counts_rejections(hit: Hit) -> bool:
    """Whether the store has to hear of each rejection."""
    return isinstance(hit.limit.algorithm, RejectionCountingLog)


def _wait(known: tuple[Hit, Decision]) -> float:
    retry = known[1].retry_us
    return math.inf if retry is None else retry


def _later(decision: Decision, hit: Hit, passed: int) -> Decision:
    """A remembered decision after ``passed`` microseconds, for a hit that may cost more, even more than fits."""
    retry = None if decision.retry_us is None or hit.cost > hit.limit.limit else decision.retry_us - passed
    later = Decision(False, decision.remaining, retry, max(0, decision.reset_us - passed), decision.at_us + passed)
    later.source = decision.source
    return later
