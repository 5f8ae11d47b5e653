"""``TrafficFeed``: an observer that counts the outcomes of rules and endpoints in a traffic log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import repeat, starmap
from typing import Final

from ...clock import Clock
from ...settings import Settings
from ...stores import Store, check_store_url
from ...stores.blocking import run_once
from ...traffic import TrafficLog
from ...traffic.store import FAMILIES
from ...traffic.writer import name_of
from .events import RequestOutcomes

_SAFE: Final = "noeviction"
_MAY_EVICT: Final = (
    "the traffic log and the limits share %s, which may evict keys (maxmemory-policy %s). A client whose key is evicted"
    " starts with a fresh quota. Give the traffic log a store of its own. With volatile-lru, its old counts go first"
)
_log = logging.getLogger("ratelimit_mw")
_LONGEST: Final = 100
"""The maximum length of an endpoint, so that the log keeps the outcome after it."""


def feed_of(settings: Settings, clock: Clock) -> TrafficFeed | None:
    """Return the feed of the traffic log that settings require."""
    if settings.traffic_log is None:
        return None
    return TrafficFeed(TrafficLog(settings.traffic_log, clock=clock), settings.traffic_clients)


def check_eviction(log: TrafficLog, store: Store) -> None:
    """Log a warning if the log and the limits share a Redis that may evict keys. A thread asks the server."""
    if _servers(log.name) & _servers(store.name):
        run_once(log, partial(_warn_of_eviction, log, store))


def _warn_of_eviction(log: TrafficLog, store: Store) -> None:
    for facts in store.facts():
        policy = facts.values.get("maxmemory_policy", _SAFE)
        if facts.values.get("maxmemory", "0") != "0" and policy != _SAFE:
            _log.warning(_MAY_EVICT, log.name, policy)
            return


def _servers(url: str) -> set[object]:
    """Return the servers of the URL of a Redis without its login; no servers for another URL."""
    if FAMILIES.get(url.partition("://")[0]) != "redis":
        return set()
    address = check_store_url(url)[1]
    return {*address.hosts, address.path} - {""}


class TrafficFeed:
    """Counts events ``rule:NAME:OUTCOME`` and ``endpoint:TEMPLATE:OUTCOME``, each at the time of its request.

    With ``has_clients``, each request counts for its client, too, as it is in the keys of the store.
    """

    def __init__(self, log: TrafficLog, has_clients: bool) -> None:
        self.log = log
        self._has_clients = has_clients

    def counter_of(self, outcomes: RequestOutcomes, endpoint: str | None) -> Iterator[object] | None:
        """Return an iterator whose every step counts a request; None when its clients count, too."""
        if self._has_clients:
            return None
        return starmap(self.log.counter_of(*(event for event, _ in _events(outcomes, endpoint))), repeat(()))

    def record(self, outcomes: RequestOutcomes, endpoint: str | None, clients: Mapping[str, str]) -> None:
        """Count a request for its clients, which are those of its rules."""
        for event, rule in _events(outcomes, endpoint):
            self.log.record(event, clients.get(rule))


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
