"""A ``Rule``: which requests, which key, which quotas, which algorithm. Checked when built; decides nothing."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..algorithms import DEFAULT, checked_spec
from ..algorithms.limit import Limit
from ..errors import ConfigError, placed
from ..keys.email import spellings
from ..keys.features import INVALID, Features, checked_name, parse_key
from ..keys.networks import Network, is_in, parse_network
from ..quota import Quota, checked_cost, parse_quotas
from .callables import checked_call
from .names import checked_rule_name
from .paths import checked_pattern

__all__ = ["Match", "Rule", "one_of"]

POLICIES: Final = ("allow", "deny", "local")
PRIORITIES: Final = ("normal",)
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_LOOK_ALIKES: Final = ("PROPPATCH", "ORDERPATCH")  # registered methods of WebDAV, and no slips
_ANY_METHOD: Final = ("ALL", "ANY", "*")  # what others call it

_TOKEN = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
_PERCENT = re.compile(r"(\d{1,2})%", re.ASCII)
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is about; empty means all. ``features`` are (name, values that match) but for ``ip``."""

    paths: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    features: tuple[tuple[str, frozenset[str]], ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, match: object) -> Match:
        """From ``{"path": "/login", "methods": ["POST"], "region": ["DE"]}``; ``ConfigError`` names what is wrong."""
        if not isinstance(match, Mapping):
            raise ConfigError(f'expected a table such as {{path = "/login", methods = ["POST"]}}; got {match!r}')
        known: dict[str, Callable[[str], str]] = {"path": checked_pattern, "methods": _method, "host": _host}
        found = {name: _each(name, match[name], check) for name, check in known.items() if name in match}
        networks: tuple[Network, ...] = _each("ip", match["ip"], parse_network) if "ip" in match else ()
        others = [name for name in match if name not in (*known, "ip")]
        features = tuple(
            (checked_name(name, also=known), _spelled(name, _each(str(name), match[name], _check_of(name))))
            for name in others
        )
        methods = frozenset(found.get("methods", ()))
        if "GET" in methods:  # every framework answers HEAD where it answers GET
            methods |= {"HEAD"}
        return cls(found.get("path", ()), methods, found.get("host", ()), features, networks)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that it looks at."""
        return (*(name for name, _ in self.features), *(("ip",) if self.networks else ()))

    def takes_method(self, method: str) -> bool:
        """Pre-flights are left alone unless a rule names OPTIONS."""
        return method in self.methods if self.methods else method != "OPTIONS"

    def takes_host(self, host: str) -> bool:
        return not self.hosts or any(_host_matches(pattern, host) for pattern in self.hosts)

    def takes_features(self, features: Features) -> bool:
        """What cannot be read may be any of the values: a rule is not evaded by making its feature invalid."""
        if self.networks and not is_in(str(features.get("ip")), self.networks):
            return False
        found = ((features.get(name), values) for name, values in self.features)
        return all(value is INVALID or (value is not None and str(value) in values) for value, values in found)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    >>> rule = Rule(name="login", limits="5/minute; 20/hour", key=["endpoint", "user|ip"])
    >>> [str(quota) for quota in rule.quotas], rule.entries
    (['5/minute', '20/hour'], (('endpoint',), ('user', 'ip')))

    ``limits``: a quota, its text, or a list; ``key``: features joined, "a|b" the first that is known, ``[]`` one
    limit for everybody; ``match``: omitted, every request; ``cost``: a whole number, or a function of the request;
    ``when_missing``: "skip" or "reject" a request whose key is unknown; ``mode``: "enforce" or "shadow";
    ``count_when``: ``{"status": [401, 403]}``, only responses with these count; ``per_key``: limits by the value of
    a one-part key; ``per``: limits by feature and value; ``on_store_error``: "allow", "deny" or "local", else what
    the settings say; ``lease``: "2%", the share that a process draws of a hot key at once; ``priority``: there
    is one, "normal". ``ConfigError`` for anything that cannot mean something.
    """

    limits: Any
    name: str | None = None
    key: Any = ("ip",)
    match: Any = field(default_factory=dict)
    algorithm: Any = DEFAULT
    cost: int | Callable[[Any], int] = 1
    when_missing: str = "skip"
    mode: str = "enforce"
    count_when: Any = None
    per_key: Mapping[str, Any] = field(default_factory=dict)
    per: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on_store_error: str | None = None
    lease: str | None = None
    priority: str = "normal"

    quotas: tuple[Quota, ...] = field(init=False, repr=False, compare=False)
    entries: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    matches: Match = field(init=False, repr=False, compare=False)
    tables: tuple[tuple[str, dict[str, tuple[Quota, ...]]], ...] = field(init=False, repr=False, compare=False)
    lease_percent: int = field(init=False, repr=False, compare=False)
    statuses: frozenset[int] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            self._check()
        except ConfigError as error:
            raise ConfigError(error.message, error.path, f"rule {self.name!r}" if self.name else "") from None

    def _check(self) -> None:
        checks: dict[str, tuple[str, Callable[[], object]]] = {
            "name": ("name", lambda: checked_rule_name(self.name)),
            "quotas": ("limits", lambda: parse_quotas(self.limits)),
            "entries": ("key", lambda: parse_key(self.key)),
            "matches": ("match", lambda: Match.of(self.match)),
            "cost": ("cost", lambda: _cost(self.cost)),
            "when_missing": ("when_missing", lambda: one_of(self.when_missing, "skip", "reject")),
            "mode": ("mode", lambda: one_of(self.mode, "enforce", "shadow")),
            "on_store_error": (
                "on_store_error",
                lambda: self.on_store_error and one_of(self.on_store_error, *POLICIES),
            ),
            "statuses": ("count_when", lambda: _statuses(self.count_when)),
            "tables": ("", self._tables),
            "lease_percent": ("lease", self._lease_percent),
            "priority": ("priority", lambda: one_of(self.priority, *PRIORITIES)),
        }
        for attribute, (place, check) in checks.items():
            with placed(place):
                object.__setattr__(self, attribute, check())
        self._check_algorithm()

    def _tables(self) -> tuple[tuple[str, dict[str, tuple[Quota, ...]]], ...]:
        """(feature, limits by value), the ones by key first, under the name ""."""
        if self.per_key and len(self.entries) != 1:
            raise ConfigError("only a rule whose key has one part can have limits by key", "per_key")
        names = [name for entry in self.entries for name in entry]
        tables = [("", _limits_by_value("per_key", self.per_key, *names))] if self.per_key else []
        for name, limits in _table("per", self.per).items():
            with placed("per"):
                feature = checked_name(name)
            tables.append((feature, _limits_by_value(f"per.{name}", limits, feature)))
        return tuple(tables)

    def _lease_percent(self) -> int:
        if self.lease is None:
            return 0
        found = _PERCENT.fullmatch(str(self.lease))
        if found is None or not 1 <= int(found[1]) <= 50:
            raise ConfigError(f'expected a share from "1%" to "50%"; got {self.lease!r}')
        if self.mode == "shadow" or self.count_when is not None or not isinstance(self.algorithm, str):
            raise ConfigError("a rule with a lease enforces, counts every outcome and has an algorithm without options")
        return int(found[1])

    def _check_algorithm(self) -> None:
        """Builds every limit once, so that a burst or a period that does not fit is found now."""
        with placed("algorithm"):
            checked_spec(self.algorithm)
        for i, quota in enumerate(self.quotas):
            with placed(f"limits[{i}]"):
                Limit("", 0, quota, self.algorithm)
        for name, table in self.tables:
            for value, quotas in table.items():
                for quota in quotas:
                    with placed(f"per.{name}[{value!r}]" if name else f"per_key[{value!r}]"):
                        Limit("", 0, quota, self.algorithm)

    @property
    def needs(self) -> tuple[str, ...]:
        """The features it looks at besides method, path and host, in a stable order."""
        names = [name for entry in self.entries for name in entry]
        names += self.matches.needs
        names += [name for name, _ in self.tables if name]
        return tuple(dict.fromkeys(names))


def one_of(value: object, *expected: str) -> str:
    """The value itself; ``ConfigError`` unless it is one of the words expected."""
    if not isinstance(value, str) or value not in expected:
        raise ConfigError(f"expected {' or '.join(map(repr, expected))}; got {value!r}")
    return value


def _cost(cost: object) -> object:
    if not callable(cost):
        return checked_cost(cost)
    if inspect.iscoroutinefunction(cost):
        raise ConfigError(f"nobody awaits a cost; got {cost!r}, which is async")
    return checked_call(cost, "the request")


def _each(place: str, value: object, check: Callable[[Any], Any]) -> tuple[Any, ...]:
    """What a value, or every one of a list of them, is checked and read as."""
    items: Any = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if not items:
        raise ConfigError("an empty list matches nothing; leave it out to match everything", place)
    with placed(place):
        return tuple(check(item) for item in items)


def _check_of(name: object) -> Callable[[object], str]:
    return _method if name == "method" else _value


def _value(value: object) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ConfigError(f"expected a text to compare with; got {value!r}")
    return str(value)


def _method(method: object) -> str:
    name = method.upper() if isinstance(method, str) else ""
    if name in _ANY_METHOD:
        raise ConfigError(f"{method!r} is no method; leave it out to match every one (OPTIONS has to be named)")
    known = name in METHODS or name in _LOOK_ALIKES
    if not known and (not _TOKEN.fullmatch(name) or difflib.get_close_matches(name, METHODS, 1, 0.65)):
        raise ConfigError(f"expected an HTTP method such as {', '.join(METHODS[:6])}; got {method!r}")
    return name


def _host(host: object) -> str:
    name = host.lower() if isinstance(host, str) else ""
    if not _HOST.fullmatch(name):
        raise ConfigError(f'expected a host without port such as "example.com" or "*.example.com"; got {host!r}')
    return name


def _host_matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _statuses(count_when: object) -> frozenset[int] | None:
    if count_when is None:
        return None
    if not isinstance(count_when, Mapping) or set(count_when) != {"status"}:
        raise ConfigError(f"expected {{status = [401, 403]}}; got {count_when!r}")
    statuses = count_when["status"]
    items = [statuses] if isinstance(statuses, int) else statuses
    if not isinstance(items, list | tuple | set) or not items:
        raise ConfigError(f"expected {{status = [401, 403]}}; got {count_when!r}")
    for status in items:
        if type(status) is not int or not 100 <= status <= 599:
            raise ConfigError(f"expected HTTP statuses from 100 to 599; got {status!r}", "status")
    return frozenset(items)


def _table(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a table; got {value!r}", place)
    return value


def _limits_by_value(place: str, table: object, *features: str) -> dict[str, tuple[Quota, ...]]:
    """The limits of each value of the features, in every spelling; what stands there goes first."""
    found = {}
    for value, limits in _table(place, table).items():
        with placed(f"{place}[{value!r}]"):
            found[str(value)] = parse_quotas(limits)
    for value, quotas in list(found.items()):
        for feature in features:
            for spelling in spellings(feature, value):
                found.setdefault(spelling, quotas)
    return found


def _spelled(feature: str, values: Iterable[str]) -> frozenset[str]:
    return frozenset(spelling for value in values for spelling in spellings(feature, value))
