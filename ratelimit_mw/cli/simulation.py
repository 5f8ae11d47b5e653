"""Applies rules to recorded requests at the time of each request, and counts the decisions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from ..clock import SECOND
from ..decision import Verdict
from ..http.client_ip import ip_key
from ..keys.features import INVALID, UNKNOWN_IP
from ..limiter.limiter import Limiter
from ..rules.plan import CompiledRule
from ..settings import Settings
from .access_log import LogEntry

_LOGGED: Final = {"ip": "client", "method": "method", "path": "target.path", "user": "user"}
_LOGGED_HEADERS: Final = {"header:user-agent": "user_agent", "header:referer": "referer"}
_READERS: Final = {name: attrgetter(attribute) for name, attribute in {**_LOGGED, **_LOGGED_HEADERS}.items()}


class RuleReport:
    """The counts of one rule. The counts of a shadow rule are what it would have rejected."""

    def __init__(self, rule: CompiledRule) -> None:
        self.name = rule.name
        self.mode = rule.source.mode
        self.matched = 0
        self.delayed = 0
        # The limits of the rule first. A limit of a single client is added when it rejects.
        self.rejected_by_limit: Counter[str] = Counter({str(limit.quota): 0 for limit in rule.limits})
        self.clients: Counter[str] = Counter()
        """Rejections by client."""


class ReplayReport:
    """The counts of a whole log. Times are in seconds since 1970."""

    def __init__(self, rules: Iterable[CompiledRule]) -> None:
        self.rules = {rule.name: RuleReport(rule) for rule in rules}
        self.requests: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.times = array("q")
        self.rejected_times = array("q")
        self.out_of_order = 0
        self._latest = 0

    @property
    def first(self) -> datetime:
        """The time of the earliest request. The report must contain one."""
        return datetime.fromtimestamp(min(self.times), UTC)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(max(self.times), UTC)

    @property
    def period(self) -> str:
        return f"{self.first:%Y-%m-%d %H:%M:%S} to {self.last:%Y-%m-%d %H:%M:%S} UTC"

    def most_rejected(self, top: int) -> list[str]:
        """Return the clients with the most rejections; ties by number of requests, then by name."""
        return sorted(self.rejected, key=lambda client: (-self.rejected[client], -self.requests[client], client))[:top]

    def add(self, time: int, client: str, verdict: Verdict) -> None:
        self.out_of_order += time < self._latest
        self._latest = max(self._latest, time)
        self.times.append(time)
        self.requests[client] += 1
        if not verdict.allowed:
            self.rejected[client] += 1
            self.rejected_times.append(time)
        for name in verdict.rules:
            self.rules[name].matched += 1
        rejecting = [decision for decision in verdict.decisions if not decision.allowed]
        for decision in rejecting:
            self.rules[decision.rule].rejected_by_limit[str(decision.quota)] += 1
        for name in {decision.rule for decision in rejecting}:
            self.rules[name].clients[client] += 1
        for name in {decision.rule for decision in verdict.decisions if verdict.delay and decision.delay_us}:
            self.rules[name].delayed += 1


class Simulation:
    """Replays requests in the memory store. The clock has the time of each request.

    Attributes:
        missing: The features of rules that an access log does not contain, each with its rules.
    """

    def __init__(self, settings: Settings) -> None:
        self._now = 0
        store = settings.store if settings.store.startswith("memory:") else "memory://"
        # Without the application there is no rule of a decorator to override.
        self._limiter = Limiter(settings.rules, store, lambda: self._now, replace(settings, overrides={}))
        rules = self._limiter.rules
        self._readers = {name: read for name in rules.needs if (read := _reader(name))}
        self._ip = lru_cache(100_000)(lambda text: ip_key(text, settings.ipv6_prefix))
        self._report = ReplayReport(rules.rules)
        self.missing: dict[str, list[str]] = {}
        for rule in rules.rules:
            for name in dict.fromkeys((*rule.source.needs, *(["host"] if rule.source.matches.hosts else []))):
                if not _reader(name):
                    self.missing.setdefault(name, []).append(rule.name)

    def replay(self, entries: Iterable[LogEntry]) -> ReplayReport:
        for entry in entries:
            self._replay(entry)
        return self._report

    def _replay(self, entry: LogEntry) -> None:
        target = entry.target
        client = self._client(entry.client)
        features = {name: read(entry) for name, read in self._readers.items()}
        features |= {"ip": client, "method": entry.method, "path": target.path, "host": target.host}
        self._now = entry.time * SECOND
        plan = self._limiter.match(features)
        verdict = self._limiter.decide(plan, features)
        if plan.needs_settlement:
            self._limiter.conclude(verdict, entry.status)
        self._report.add(entry.time, client, verdict)

    def _client(self, text: str | None) -> str:
        """Return the IP address as the middleware writes it, or the host name that Apache may log instead."""
        if text is None or text.startswith("unix:"):
            return UNKNOWN_IP
        return self._ip(text) or text.lower()


def _reader(feature: str) -> Callable[[LogEntry], Any] | None:
    """Return the function that reads a feature; None when no access log contains it."""
    family, _, name = feature.partition(":")
    return (lambda entry: _field(entry, name)) if family == "query" else _READERS.get(feature)


def _field(entry: LogEntry, name: str) -> Any:
    fields = entry.target.fields
    return INVALID if fields is None else fields.get(name)
