"""Applies rules to recorded requests at the time of each request, and counts the decisions."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final

from ..clock import SECOND
from ..decision import Verdict
from ..http.client_ip import ClientIP
from ..keys.features import INVALID, UNKNOWN_IP
from ..limiter.limiter import Limiter
from ..rules.plan import CompiledRule
from ..settings import Settings
from ..stores import redacted_url
from .access_log import LogEntry

_ALWAYS_LOGGED: Final = ("ip", "method", "path")
_LOGGED: Final = {"user": "user", "header:user-agent": "user_agent", "header:referer": "referer"}


class RuleReport:
    """The counts of one rule. The counts of a shadow rule are what it would have rejected."""

    def __init__(self, rule: CompiledRule) -> None:
        self.name = rule.name
        self.mode = rule.source.mode
        self.matched = 0
        self.delayed = 0
        # The limits of the rule first. A limit of a single client is added when it rejects.
        self.rejected_by_limit: Counter[str] = Counter({str(limit.quota): 0 for limit in rule.limits})
        self.clients: Counter[str] = Counter()  # rejections by client

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "mode": self.mode,
            "matched": self.matched,
            "rejected": self.clients.total(),
            "delayed": self.delayed,
            "clients_rejected": len(self.clients),
            "limits": [{"limit": limit, "rejected": n} for limit, n in self.rejected_by_limit.items()],
        }


class Simulation:
    """Replays requests in the memory store, with the time of each request as the clock, and counts the decisions."""

    def __init__(self, settings: Settings) -> None:
        self._now = self._latest = 0
        store = settings.store if redacted_url(settings.store).startswith("memory:") else "memory://"
        # Without the application there is no rule of a decorator to override, and nothing to observe.
        settings = replace(settings, overrides={}, enabled=True, observers=())
        self._limiter = Limiter(settings.rules, store, lambda: self._now, settings)
        ip_key = ClientIP(ipv6_prefix=settings.ipv6_prefix, nat64=settings.nat64_prefixes).key
        self._client = lru_cache(100_000)(partial(_client, ip_key))
        self.rules = {rule.name: RuleReport(rule) for rule in self._limiter.rules.rules}
        self.requests: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.times = array("q")  # in seconds since 1970
        self.rejected_times = array("q")
        self.out_of_order = 0

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The times of the earliest and the latest request. There must be one."""
        return datetime.fromtimestamp(min(self.times), UTC), datetime.fromtimestamp(max(self.times), UTC)

    @property
    def period(self) -> str:
        return "{:%Y-%m-%d %H:%M:%S} to {:%Y-%m-%d %H:%M:%S} UTC".format(*self.span)

    def most_rejected(self, top: int) -> list[str]:
        """Return the clients with the most rejections; ties by number of requests, then by name."""
        return sorted(self.rejected, key=lambda client: (-self.rejected[client], -self.requests[client], client))[:top]

    def client_as_json(self, client: str) -> dict[str, Any]:
        rules = [rule.name for rule in self.rules.values() if rule.mode == "enforce" and rule.clients[client]]
        requests, rejected = self.requests[client], self.rejected[client]
        return {"client": client, "requests": requests, "rejected": rejected, "rules": rules}

    def replay(self, entries: Iterable[LogEntry]) -> None:
        needs = [name for name in self._limiter.rules.needs if name not in _ALWAYS_LOGGED and is_logged(name)]
        for entry in entries:
            client = self._client(entry.client)
            features = {"ip": client, "method": entry.method, "path": entry.target.path, "host": entry.target.host}
            features |= {name: _read(entry, name) for name in needs}
            self._now = entry.time * SECOND
            plan = self._limiter.match(features)
            verdict = self._limiter.decide(plan, features)
            if plan.needs_settlement:
                self._limiter.conclude(verdict, entry.status)
            self._count(entry.time, client, verdict)

    def _count(self, time: int, client: str, verdict: Verdict) -> None:
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


def is_logged(feature: str) -> bool:
    """Return whether an access log contains a feature."""
    return feature in _ALWAYS_LOGGED or feature in _LOGGED or feature.startswith("query:")


def _read(entry: LogEntry, feature: str) -> Any:
    if feature in _LOGGED:
        return getattr(entry, _LOGGED[feature])
    fields = entry.target.fields
    return INVALID if fields is None else fields.get(feature.removeprefix("query:"))


def _client(ip_key: Callable[[str], str | None], text: str | None) -> str:
    """Return the IP address as the middleware writes it, or the host name that Apache may log instead."""
    if text is None or text.startswith("unix:"):
        return UNKNOWN_IP
    return ip_key(text) or text.lower()
