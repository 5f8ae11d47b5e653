"""Refusals remembered: a key that a shared store has just refused is refused here, without asking again.

Only what cannot change without this process knowing: no log that counts refusals, no slots, and never for less than the
cost that was refused. Bounded: two tables that take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .algorithms.window_log import RefusalCountingLog
from .decision import Decision, Hit

__all__ = ["Refusals"]

_KEPT: Final = 50_000


class _Known(NamedTuple):
    noted: int
    until: int
    cost: int
    decision: Decision


class Refusals:
    """Remembers for a decision's ``retry_us``, at most ``span_us``; 0 remembers nothing."""

    def __init__(self, span_us: int) -> None:
        self._span = span_us
        self._young: dict[str, _Known] = {}
        self._old: dict[str, _Known] = {}

    def recall(self, hits: Iterable[Hit], now: int) -> tuple[list[Hit], list[Decision]] | None:
        """The first hit that is known to be refused now, with its decision as of now."""
        if not self._young and not self._old:
            return None
        for hit in hits:
            known = self._young.get(hit.key) or self._old.get(hit.key)
            if known is not None and hit.cost >= known.cost and now < known.until:
                return [hit], [_later(known.decision, now - known.noted)]
        return None

    def note(self, hits: Sequence[Hit], decisions: Sequence[Decision], now: int) -> None:
        """Learn from a refused request."""
        for hit, decision in zip(hits, decisions, strict=True):
            retry = decision.retry_us
            if self._span and not decision.allowed and retry and _may_be_remembered(hit):
                if len(self._young) >= _KEPT // 2:
                    self._old, self._young = self._young, {}
                self._young[hit.key] = _Known(now, now + min(retry, self._span), hit.cost, decision)

    def forget(self, keys: Iterable[str]) -> None:
        """These keys have got something back."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)


def _may_be_remembered(hit: Hit) -> bool:
    limit = hit.limit
    changes_unseen = limit.by_outcome or limit.quota.concurrent or isinstance(limit.algorithm, RefusalCountingLog)
    return not limit.shadow and not changes_unseen


def _later(decision: Decision, passed: int) -> Decision:
    """A remembered decision after ``passed`` microseconds."""
    retry = None if decision.retry_us is None else decision.retry_us - passed
    later = Decision(False, decision.remaining, retry, max(0, decision.reset_us - passed), decision.at_us + passed)
    later.bound = decision.bound
    return later
