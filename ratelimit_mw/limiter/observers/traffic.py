"""``TrafficFeed``: an observer that counts the outcomes of rules and endpoints in a traffic log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Final
from weakref import finalize

from ...traffic import TrafficLog
from ...traffic.number import Counter
from ...traffic.pending import name_of
from .events import Event

if TYPE_CHECKING:
    from ..limiter import Limiter

_LONGEST: Final = 100
"""The maximum length of an endpoint, so that the log keeps the outcome after it."""


def feed_of(limiter: Limiter) -> TrafficFeed | None:
    """Return the feed of the traffic log that the settings of a limiter require. Its thread ends with the limiter."""
    settings = limiter.settings
    if settings.traffic_log is None:
        return None
    log = TrafficLog(settings.traffic_log, clock=limiter._time)
    finalize(limiter, log.abandon).atexit = False
    return TrafficFeed(log, settings.record == "clients")


class TrafficFeed:
    """Counts events ``rule:NAME:OUTCOME`` and ``endpoint:TEMPLATE:OUTCOME``. Each is one step in memory.

    With ``has_clients``, each request counts for its client, too, as it is in the keys of the store.
    """

    def __init__(self, log: TrafficLog, has_clients: bool) -> None:
        self.log = log
        self._has_clients = has_clients

    def request_counter_of(self, rules: Sequence[str], outcome: str, endpoint: str | None) -> Counter | None:
        """Return the counter of requests for their rules and their endpoint; None when their clients count, too.

        All of the rules have the outcome.
        """
        if self._has_clients:
            return None
        events = [event_of(rule, outcome) for rule in rules]
        return starmap(self.log.counter_of(*events, *_events_at(endpoint, outcome)), repeat(()))

    def __call__(self, event: Event) -> None:
        clients = event.clients if self._has_clients else {}
        for name in _events_at(event.endpoint, event.outcome):
            self.log.record(name)
        for rule, outcome in (event.outcomes or {"": event.outcome}).items():
            self.log.record(event_of(rule, outcome), clients.get(rule))


def _events_at(endpoint: str | None, outcome: str) -> list[str]:
    return [] if endpoint is None else [f"endpoint:{name_of('endpoint', endpoint, _LONGEST)}:{outcome}"]


def event_of(rule: str, outcome: str) -> str:
    """Return the event of a rule. A request without a rule has an event, too, for example of a deny list."""
    return f"rule:{rule}:{outcome}" if rule else f"request:{outcome}"
