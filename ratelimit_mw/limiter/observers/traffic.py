"""The events of a traffic log: ``rule:NAME:OUTCOME`` and ``endpoint:TEMPLATE:OUTCOME``, at the time of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ...traffic import TrafficLog
from ...traffic.counts import bounded
from .events import Event, RequestOutcomes, clients_in

_MAX_NAME: Final = 100
"""The maximum length of an endpoint, so that the log keeps the outcome after it."""


def counters_of(log: TrafficLog, outcomes: RequestOutcomes, endpoint: str | None) -> list[Callable[[], None]]:
    """Return functions that together count a request, without its client."""
    return [partial(log.record, event) for event, _ in _events(outcomes, endpoint)]


def recorder_of(log: TrafficLog, outcomes: RequestOutcomes, endpoint: str | None) -> Callable[[Event], None]:
    """Return a function that counts a request for the clients of its rules, as they are in the keys of the store."""
    events = list(_events(outcomes, endpoint))

    def record(request: Event) -> None:
        clients = clients_in(request)
        for event, rule in events:
            log.record(event, clients.get(rule))

    return record


def _events(outcomes: RequestOutcomes, endpoint: str | None) -> Iterator[tuple[str, str]]:
    """Yield the events of a request in the log, each with its rule."""
    if endpoint is not None:
        yield f"endpoint:{bounded('endpoint', endpoint, _MAX_NAME)}:{outcomes.outcome}", ""
    for rule, outcome, _ in outcomes.labels:
        yield event_of(rule, outcome), rule


def event_of(rule: str, outcome: str) -> str:
    """Return the event of a rule. A request without a rule has an event, too, for example of a deny list."""
    return f"rule:{rule_in_log(rule)}:{outcome}" if rule else f"request:{outcome}"


def rule_in_log(rule: str) -> str:
    """Return the name of a rule as the log has it."""
    return bounded("rule", rule, _MAX_NAME)
