"""``LabelledCounters``: a bounded number of counters by rule, outcome and store. Knows no library of metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from ..limiter.events import Event

MAX_SERIES: Final = 1000
OTHER: Final = "other"
"""The rule of further series, when there are too many."""
Labels = tuple[str, str, str]
"""The name of a rule, its outcome, and the kind of store, or "local". Without any rule, the name is empty."""

_Counter = TypeVar("_Counter")


class LabelledCounters(dict[Labels, _Counter]):
    """The counters by their labels, built when they are first used."""

    def __init__(self, build: Callable[[Labels], _Counter]) -> None:
        self._build = build

    def __missing__(self, labels: Labels) -> _Counter:
        rule, outcome, store = labels
        if len(self) >= MAX_SERIES and rule != OTHER:
            return self[OTHER, outcome, store]
        return self.setdefault(labels, self._build(labels))


def labels_of(event: Event) -> list[Labels]:
    """Return the labels of each rule of an event."""
    if (decision := event.only_decision) is not None and decision.allowed:  # in a third of the time
        limit = decision.hit[0]
        return [(limit.rule, "allowed", "local" if limit.local else event.store)]
    store = "local" if event.local else event.store
    return [(rule, outcome, store) for rule, outcome in (event.outcomes or {"": event.outcome}).items()]
