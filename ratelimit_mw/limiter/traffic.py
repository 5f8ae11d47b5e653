"""``TrafficFeed``: an observer that counts the outcomes of rules and endpoints in a traffic log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..traffic import TrafficLog
from .counts import Counter, Labels
from .events import Event

if TYPE_CHECKING:
    from .limiter import Limiter


def feed_of(limiter: Limiter) -> TrafficFeed | None:
    """Return the feed of the traffic log that the settings of a limiter want."""
    settings = limiter.settings
    if settings.traffic_log is None:
        return None
    return TrafficFeed(TrafficLog(settings.traffic_log, clock=limiter._time), settings.record == "clients")


class TrafficFeed:
    """Counts events ``rule:NAME:OUTCOME`` and ``endpoint:TEMPLATE:OUTCOME``. Each is one step in memory.

    With ``has_clients``, rejections count for their client, too, as it is in the keys of the store.
    """

    def __init__(self, log: TrafficLog, has_clients: bool) -> None:
        self.log = log
        self._has_clients = has_clients

    def counter_of(self, labels: Labels) -> Counter | None:
        """Return the function that counts a request; None for a request whose client counts, too."""
        rule, outcome, _ = labels
        return None if self._has_clients and outcome != "allowed" else partial(self.log.record, event_of(rule, outcome))

    def count_endpoint(self, endpoint: str, outcome: str) -> None:
        """Count a request for its endpoint."""
        self.log.record(f"endpoint:{endpoint}:{outcome}")

    def __call__(self, event: Event) -> None:
        clients = {each.rule: each.client for each in event.rejections if each.key} if self._has_clients else {}
        for rule, outcome in (event.outcomes or {"": event.outcome}).items():
            self.log.record(event_of(rule, outcome), clients.get(rule))


def event_of(rule: str, outcome: str) -> str:
    """Return the event of a rule. A request without a rule has an event, too, for example of a deny list."""
    return f"rule:{rule}:{outcome}" if rule else f"request:{outcome}"
