"""``TrafficFeed``: an observer that counts the outcomes of rules and endpoints in a traffic log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from typing import Final

from ...clock import Clock
from ...settings import Settings
from ...traffic import TrafficLog
from ...traffic.writer import name_of
from .events import Event, RequestOutcomes

_LONGEST: Final = 100
"""The maximum length of an endpoint, so that the log keeps the outcome after it."""


def feed_of(settings: Settings, clock: Clock) -> TrafficFeed | None:
    """Return the feed of the traffic log that settings require."""
    if settings.traffic_log is None:
        return None
    return TrafficFeed(TrafficLog(settings.traffic_log, clock=clock), settings.traffic_clients)


class TrafficFeed:
    """Counts events ``rule:NAME:OUTCOME`` and ``endpoint:TEMPLATE:OUTCOME``, each at the time of its request.

    With ``has_clients``, each request counts for its client, too, as it is in the keys of the store.
    """

    def __init__(self, log: TrafficLog, has_clients: bool) -> None:
        self.log = log
        self.has_clients = has_clients

    def counter_of(self, outcomes: RequestOutcomes, endpoint: str | None) -> Iterator[object]:
        """Return an iterator whose every step counts a request, without its client."""
        return starmap(self.log.counter_of(*(event for event, _ in _events(outcomes, endpoint))), repeat(()))

    def recorder_of(self, outcomes: RequestOutcomes, endpoint: str | None) -> Callable[[Event], None]:
        """Return a function that counts a request for its clients, which are those of its rules."""
        events = list(_events(outcomes, endpoint))

        def record(request: Event) -> None:
            decisions = (decision for verdict in request._verdicts for decision in verdict.decisions)
            clients = {each.rule: each.client for each in decisions if each.key}
            for event, rule in events:
                self.log.record(event, clients.get(rule))

        return record


def _events(outcomes: RequestOutcomes, endpoint: str | None) -> Iterator[tuple[str, str]]:
    """The events of a request in the log, each with its rule."""
    if endpoint is not None:
        yield f"endpoint:{name_of('endpoint', endpoint, _LONGEST)}:{outcomes.outcome}", ""
    for rule, outcome, _ in outcomes.labels:
        yield event_of(rule, outcome), rule


def event_of(rule: str, outcome: str) -> str:
    """Return the event of a rule. A request without a rule has an event, too, for example of a deny list."""
    return f"rule:{rule_in_log(rule)}:{outcome}" if rule else f"request:{outcome}"


def rule_in_log(rule: str) -> str:
    """Return the name of a rule as the log has it."""
    return name_of("rule", rule, _LONGEST)
