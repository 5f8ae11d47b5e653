"""Decides recorded requests by rules, in the memory store, with the time of each request as the clock."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final

from ...clock import SECOND
from ...decision import Verdict
from ...http.client_ip import ClientIP
from ...http.warnings import NOT_ENABLED
from ...keys.features import INVALID, UNKNOWN_IP
from ...limiter.limiter import Limiter
from ...operations.overview import describe_amendments
from ...rules.compiled import CompiledRule
from ...rules.plan import Plan
from ...stores import MemoryStore
from ...stores.url import redacted_url
from ..access_log import LogEntry
from ..log_formats import LineParser
from ..output import Failure
from ..source import Source, request_of

_ALWAYS_LOGGED: Final = ("ip", "method", "path")
_ROUTE_FEATURES: Final = ("endpoint", "view")
"""The features that only the routes of an application give."""
_QUERY: Final = "query:"
_KNOWN_CLIENTS: Final = 100_000
_KNOWN_ROUTES: Final = 10_000
_MAX_KEYS: Final = 1_000_000


class Simulation:
    """A limiter for recorded requests, without observers. It has the rules and the routes of a source.

    Raises:
        Failure: The rules of a file need the routes of an application.
    """

    def __init__(self, source: Source) -> None:
        if source.overview.is_file:
            _check_routes(source)
        self._source = source
        self._now = 0
        settings = source.settings.replace(observers=(), traffic_log=None)
        self._store = MemoryStore(_MAX_KEYS)
        self.is_full = False
        """Whether clients had to share counts, because the store has no room for more."""
        self._limiter = Limiter((), self._store, lambda: self._now, settings)
        self._limiter.reloads.rules = source.rules
        self._limiter.reloads.prepare(source.rules)
        self._route = lru_cache(_KNOWN_ROUTES)(partial(_route, source))
        self.rules = source.rules.rules
        self._attributes = _attributes_of(self.rules)
        self._features = [name for name in source.rules.needs if name not in _ALWAYS_LOGGED]
        self._header = f"header:{settings.forwarded_header}"
        self.needs = [*source.rules.needs, *chain.from_iterable(self._attributes.values()), self._header]
        """The features to read from a line."""
        trusted, prefix = settings.trusted_proxies, settings.ipv6_prefix
        by_header = ClientIP(trusted, settings.forwarded_header, prefix)
        by_list = ClientIP(trusted, "x-forwarded-for", prefix)  # a list of addresses has this form
        self._find = lru_cache(_KNOWN_CLIENTS)(partial(_find_client, by_header, by_list))

    def client(self, entry: LogEntry) -> Any:
        """Return the value of ``ip``, as the middleware finds it."""
        return self._find(entry.client, entry.features.get(self._header))

    def decide(self, entry: LogEntry) -> Verdict:
        """Decide a request at its time, and conclude it with its status."""
        target = entry.target
        features: dict[str, Any]
        features = {"ip": self.client(entry), "method": entry.method, "path": target.path, "host": target.host}
        for name in self._features:
            features[name] = _read(entry, name) if name not in self._attributes else self._table(entry, name)
        self._now = round(entry.time * SECOND)
        if self._source.overview.is_file:  # a file knows no routes, and a log may have millions of paths
            plan = self._source.rules.plan(entry.method, target.path, target.host)
        else:
            plan, convert, given = self._route(entry.method, target.path, target.host)
            features = {name: convert(name, value) for name, value in features.items()} | given
        verdict = self._limiter.decide(plan, features)
        if plan.needs_settlement:
            self._limiter.conclude(verdict, entry.status)
        if len(self._store) >= _MAX_KEYS:
            self.is_full = True
        return verdict

    def _table(self, entry: LogEntry, feature: str) -> dict[str, Any] | None:
        """Return the attributes of a feature, such as ``user.id``, that the line contains."""
        parts = [name for name in self._attributes[feature] if name in entry.features]
        return {name.partition(".")[2]: entry.features[name] for name in parts} or None

    def notes(self, parser: LineParser) -> Iterator[str]:
        """Yield how the replay differs from the application: store and slots, missing features, and shared counts."""
        source, attributes, is_app = self._source, self._attributes, not self._source.overview.is_file
        if not source.rules.enabled:  # of an application
            yield NOT_ENABLED
        if (scheme := redacted_url(source.settings.store).partition(":")[0]) != "memory":
            yield f"counting in memory, not in {scheme}"
        yield from () if is_app else describe_amendments(source.settings.amendments)
        if marked := [rule.name or f"rule-{i + 1}" for i, rule in enumerate(source.settings.rules) if rule.is_marked]:
            yield f"the log does not contain marks, so no request is marked for {', '.join(marked)}"
        if slots := [rule.name for rule in self.rules if any(limit.quota.concurrent for limit in rule.all_limits())]:
            yield f"requests end at once in the replay, so concurrency limits reject none for {', '.join(slots)}"
        given = {*_ALWAYS_LOGGED, *parser.found, *(_ROUTE_FEATURES if is_app else ())}
        families = (_QUERY, "path:") if is_app else (_QUERY,)
        for feature, users in source.rules_by_feature().items():
            for part in dict.fromkeys(attributes.get(feature, [feature])):
                if part not in given and not part.startswith(families):
                    yield f"the log does not contain {part}: missing in every request for {', '.join(users)}"
        if self.is_full:
            yield f"more than {_MAX_KEYS:,} keys at once: some clients share counts, and may be rejected too early"


def _route(source: Source, method: str, path: str, host: str) -> tuple[Plan, Callable[[str, Any], Any], dict[str, Any]]:
    """Return the plan of a request, the conversion of features of its route, and those that the route gives."""
    request = request_of(method, path, host)
    given = source.route(request)
    # Without a host in the log, no rule of a host applies.
    plan = source.rules.plan(method, request.sent_path, host, request.to, request)
    return plan, request.to.convert, given


def _read(entry: LogEntry, feature: str) -> Any:
    if feature.startswith(_QUERY):
        fields = entry.target.fields
        return INVALID if fields is None else fields.get(feature.removeprefix(_QUERY))
    return entry.target.host if feature == "host" else entry.features.get(feature)


def _find_client(by_header: ClientIP, by_list: ClientIP, text: str | None, header: Any) -> Any:
    """Return the value of ``ip``: a key of the middleware, or the host name that Apache may log instead."""
    *hops, peer = (text or "").split(",")
    peer = peer.strip()
    if hops:
        client = by_list.resolve(peer, [",".join(hops)])
    else:
        client = by_header.resolve(peer, [] if header is None else [str(header)])
    return client or (peer.lower() if peer and not peer.startswith("unix:") else UNKNOWN_IP)


def _attributes_of(rules: Iterable[CompiledRule]) -> dict[str, list[str]]:
    """Return the features of which rules use attributes, each with the names of these: ``user`` with ``user.id``."""
    parts = [part for rule in rules for part in rule.source.parts]
    return {part.feature: [each.name for each in parts if each.feature == part.feature and each.attribute]
            for part in parts if part.attribute}  # fmt: skip


def _check_routes(source: Source) -> None:
    views = [rule.name for rule in source.rules.rules if any(rule.source.matches.views)]
    by_feature = {"view": views, **source.rules_by_feature()}
    for name in _ROUTE_FEATURES:
        if users := by_feature.get(name):
            hint = "Only an application knows its routes: ratelimit-mw replay --app MODULE:APP"
            raise Failure(f"a log does not contain the {name}, which {', '.join(users)} needs. {hint}")
