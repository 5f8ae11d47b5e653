"""A ``CompiledRule``: a rule with its limits and its key maker built, and the limits of each client. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ..algorithms import build_limit
from ..clock import SECOND, Clock
from ..decision import BanLimit, Hit, Limit, Tuning, make_hit
from ..errors import ConfigError, join_path
from ..keys.features import INVALID, UNMATCHED, Features
from ..keys.key import KeyMaker, Secret
from ..keys.parts import Part
from ..quota import Quota, checked_cost
from ..runtime.blocking import Call
from .lookup import UNLIMITED, LimitsCall, LimitsLookup, Lookups, find_limits
from .named_rules import NamedRule
from .overrides import OverrideTable
from .places import DEFAULTS, place_of, steps_of
from .priorities import Priorities
from .rule import Rule, parse_limits
from .schedule import Schedule
from .values import FeatureCost

Limits = tuple[Limit, ...]
Chooser = Callable[[Features, str, int, Any], "Limits | list[Limits] | LimitsCall | None"]
"""Returns the limits of a client by its features, its key, the time and the limits that ``Lookups`` has.

None is for the next chooser. A list has the limits of all values that an invalid feature may have.
"""

MAX_FOUND: Final = 10_000
"""The most different limits of functions and overrides that are kept."""


class CompiledRule:
    """A rule with its limits and its key maker built."""

    def __init__(self, named: NamedRule, secret: Secret, warn: Callable[[], None], priorities: Priorities) -> None:
        rule = self.source = named.rule
        self.name, self.shown, self.places, self.priorities = named.name, named.shown, named.places, priorities
        self.check: Callable[[Limit], None] = lambda _: None
        """The store's check of limits from a function."""
        self.is_of_messages = named.is_of_messages
        self.shadow = rule.mode == "shadow"
        self.rejects_missing = rule.when_missing == "reject" and not self.shadow
        self.needs, self.captures = rule.needs, rule.captures
        self.add_captures = self.captures.add if self.captures.names else None
        """Adds the captures of a path to the features of a request, before all else is read from them."""
        self.takes = rule.matches.takes_features if rule.matches.needs else None
        """Returns whether the features of a request match the rule; None without such a condition."""
        self.key = KeyMaker(rule.entries, next(iter(rule.matches.paths), UNMATCHED), secret, warn)
        self.build_key = self.key.with_prefix("")
        self.estimate = rule.cost if isinstance(rule.cost, FeatureCost) else None
        self.fixed_cost = rule.cost if isinstance(rule.cost, int) else None
        self._prepare_limits(rule)

    def _prepare_limits(self, rule: Rule) -> None:
        """Build all limits that are known, and the ways to find those of a client."""
        with self.located("reserve"):
            self._held = self.priorities.held(rule.reserve) if rule.reserve else {}
        self.choose = self._limits_of_class if rule.reserve or rule.target_us else self.limits_of
        """Returns the limits of a request."""
        self.limits = self._build_limits(rule.quotas)
        self._by_quotas: dict[tuple[Quota, ...], Limits] = {}
        self.lookup = None
        """The function that the limits come from, and its results; None for limits that are known."""
        if rule.function is not None:
            values = KeyMaker(rule.arguments).values
            self.lookup = LimitsLookup(rule.function, values, self.parse, rule.limits_ttl_us, f"rule {self.name!r}")
        self.shown_limits = self.limits or (self._unknown_limit(),)
        """The limits of decisions without a client's own: one without a meaning, where a function returns them."""
        self.ban = None if rule.ban is None else BanLimit(rule.ban, self.shown_limits[0])
        self._tables = [self._build_table(table) for _, table in rule.tables]
        self.ranges = self._build_table(rule.schedule.limits if rule.schedule else {})
        """The limits in the ranges of the schedule."""
        self._own_choosers = tuple(self._choosers())
        self.override(None)

    def _unknown_limit(self) -> Limit:
        limit = build_limit(self.name, 0, Quota.exact(1, SECOND), "fixed-window", self.shadow)
        limit.show_as(self.shown)
        return limit

    def is_same(self, named: NamedRule, priorities: Priorities) -> bool:
        """Return whether another rule of this name is the same, so that the limits of this one stay known."""
        own = (self.source, self.shown, self.is_of_messages, self.priorities)
        return own == (named.rule, named.shown, named.is_of_messages, priorities)

    def error(self, message: str, path: str = "") -> ConfigError:
        """Return an error about an option, with the place where it is written. ``path`` begins with the option."""
        option = str(next(iter(steps_of(path)), ""))
        return self.places.get(option, self.places[""]).error(message, path)

    @property
    def lines(self) -> list[str]:
        """The "FILE:LINE" of each table of the settings that is about the rule."""
        places = {place.path: place for place in self.places.values() if place.file and place.path != DEFAULTS}
        return [place_of(place.file, place.path) for place in places.values()]

    @contextmanager
    def located(self, path: str = "") -> Iterator[None]:
        """Add the place of the rule, or of an option, to each ``ConfigError`` of a block."""
        try:
            yield
        except ConfigError as error:
            raise self.error(error.message, join_path(path, error.path)) from None

    def _build_limits(self, quotas: Iterable[Quota]) -> Limits:
        rule = self.source
        options = (rule.algorithm, self.shadow, rule.statuses, rule.on_store_error, rule.lease_percent, rule.unit)
        limits = tuple(build_limit(self.name, i, quota, *options) for i, quota in enumerate(quotas))
        for limit in limits:
            limit.show_as(self.shown)
            limit.values_of, limit.names_client = self.key.parse, self.key.names_client
        ban = BanLimit(rule.ban, limits[0]) if rule.ban is not None and limits else None
        for limit in limits:
            limit.ban, quota = ban, limit.quota
            if quota.floor is not None:
                by = "time" if limit.sheds else rule.tune or ""
                limit.tuning = Tuning(by, quota.floor, quota.amount, quota.period_us, rule.target_us)
            held = self.priorities.shed if limit.sheds else self._held
            limit.by_class = {name: limit.leaving(percent) for name, percent in held.items()}
        return limits

    def _build_table(self, table: Mapping[str, Iterable[Quota]]) -> dict[str, Limits]:
        return {value: self._build_limits(quotas) for value, quotas in table.items()}

    def key_of(self, features: Features) -> str | None:
        """Return the key of a client by its features; None without one."""
        return self.build_key(self.captures.add(features))

    async def limits_of_client(self, call: Call, features: Features, clock: Clock) -> tuple[str, Limits | None]:
        """Return the key of a client, and its limits; None where their function failed.

        ``ConfigError`` for features that make no key.
        """
        key = self.key_of(features)
        if key is None:
            raise self.no_key(features)
        return key, await find_limits(call, partial(self.limits_of, self.captures.add(features), key), clock)

    def require_client(self, features: Features) -> None:
        """Raise ``ConfigError`` for features that name no client, such as those without its IP address."""
        if self.missing_in_key(features):
            raise self.no_key(features)

    def client_key(self, features: Features, is_exact: bool = False) -> str:
        """Return the part of the keys of this rule that names a client with these features.

        Requests without an IP address count as ``unknown``. Here, the feature is missing. With ``is_exact``, a feature
        that does not choose the client or its limits is an error, because it may be misspelt, or be of another client.
        """
        if self.missing_in_key(features) or (is_exact and features.keys() - self.used_features):
            raise self.no_key(features)
        given = self.captures.add(features)
        chosen = [next(part for part in parts if part.value(given) is not None) for parts in self.source.entries]
        for part in chosen:
            if part.compared(given) is INVALID:
                raise ConfigError(f"{part} of rule {self.name!r} cannot have this value")
        # The parts that a function is passed are single ones, or those of the key.
        passed = (parts[0] for parts in self.source.arguments if len(parts) == 1)
        naming = {part.feature for part in (*chosen, *passed, *(by for by, _ in self.source.tables if by))}
        if is_exact and (others := [name for name in features if name not in naming and name not in self._of_path]):
            raise ConfigError(f"rule {self.name!r} does not count this client by {' and '.join(others)}. Leave it out")
        return self.build_key(given) or ""

    def no_key(self, features: Features) -> ConfigError:
        """Return the error for features that make no key of this rule."""
        if unused := [name for name in features if name not in self.used_features]:
            entries = words_of_entries(self.source.entries) or "one limit for all clients"
            hint = similar_names(unused, self.used_features)
            problem = f"rule {self.name!r} does not use {' and '.join(unused)}.{hint} Its key is: {entries}"
            for part in (part for parts in self.source.entries for part in parts if part in unused):
                problem = f"rule {self.name!r} reads {part} from the feature {part.feature!r}. Pass that feature"
        else:
            problem = f"the key of rule {self.name!r} needs {words_of_entries(self.missing_in_key(features))}"
        return ConfigError(problem)

    def missing_in_key(self, features: Features) -> list[tuple[Part, ...]]:
        """Return the entries of the key without a value, each with its alternatives."""
        given = self.captures.add(features)
        return [parts for parts in self.source.entries if all(part.value(given) is None for part in parts)]

    @property
    def used_features(self) -> set[str]:
        """The features that the rule uses, with those that have the parameters of its path patterns."""
        return {*self.needs, *self._of_path}

    @property
    def _of_path(self) -> set[str]:
        return {"path", *self.captures.names} if self.captures.names else set()

    def parse(self, result: object) -> Limits:
        """Return the limits of an override, or of the result of a function: the same objects for the same quotas."""
        if result == UNLIMITED:
            return ()
        quotas = parse_limits(self.source, result)
        if (known := self._by_quotas.get(quotas)) is not None:
            return known
        limits = self._build_limits(quotas)
        self.check_cost(limits)
        for limit in limits:
            if limit.quota.concurrent and self.is_of_messages:
                raise ConfigError(f"{str(limit.quota)!r} cannot be used for messages")
            self.check(limit)
        if len(self._by_quotas) >= MAX_FOUND:
            self._by_quotas.clear()
        self._by_quotas[quotas] = limits
        return limits

    def override(self, table: OverrideTable | None) -> None:
        """Replace the overrides of clients, which precede all other limits."""
        self.overrides = table
        self.choosers: tuple[Chooser, ...] = self._own_choosers
        """The ways to find the limits of a client, in their order."""
        if table is not None:
            self.choosers = (lambda _features, key, *_: table.find(key), *self._own_choosers)
        varies = len(self.choosers) > 1 or self.lookup or self.source.reserve or self.source.target_us
        self.limits_of_all = None if varies else self.limits
        """The limits of all clients; None where ``choose`` returns those of each client."""

    @property
    def only_limit(self) -> Limit | None:
        """The one limit that all clients and classes have; None where there are several."""
        is_only = len(self.limits) == len(self.choosers) == 1 and not self.source.reserve
        return self.limits[0] if is_only else None

    def _choosers(self) -> Iterator[Chooser]:
        for (by, _), table in zip(self.source.tables, self._tables, strict=True):
            yield _by_value((by,) if by else self.source.entries[0], table)
        if self.source.schedule is not None:
            yield _by_time(self.source.schedule, self.ranges)
        limits = self.limits
        yield (lambda *_: limits) if self.lookup is None else _by_function(self.lookup)

    def limits_of(self, features: Features, key: str, lookups: Lookups | None) -> Limits | LimitsCall | None:
        """Return the limits of a client; none for a client without limits, and None where a function failed.

        A ``LimitsCall`` has to be made first. An invalid feature may have any value, so it gets the smallest limits.
        """
        smallest: list[Limits] = []
        now = 0 if lookups is None else lookups.now
        for choose in self.choosers:
            limits = choose(features, key, now, lookups)
            if limits is not None:
                if type(limits) is list:
                    smallest += limits
                elif smallest and type(limits) is tuple:
                    smallest.append(limits)
                    break
                else:
                    return limits  # type: ignore[return-value] # it is no list
        return min(filter(None, smallest), key=_rate, default=None)

    def _limits_of_class(self, features: Features, key: str, lookups: Lookups | None) -> Limits | LimitsCall | None:
        """Return what ``limits_of`` returns, for the class of the request."""
        limits = self.limits_of(features, key, lookups)
        if isinstance(limits, tuple):
            name = self.priorities.class_of(features)
            return tuple(limit.by_class.get(name, limit) for limit in limits)
        return limits

    def hits(self, limits: Iterable[Limit], key: str, features: Features, request: Any) -> list[Hit]:
        """Build the hits of a request whose cost your function returns, or a feature has."""
        if self.estimate is not None:
            estimate = self.estimate.read(features)
            return [make_hit((limit, limit.prefix + key, limit.cap(estimate))) for limit in limits]
        asked = features if request is None else getattr(request, "for_functions", request)
        cost = self.source.cost(asked)  # type: ignore[operator]
        with self.located("cost"):
            checked_cost(cost)
        return [make_hit((limit, limit.prefix + key, cost)) for limit in limits]

    def all_limits(self, now: int | None = None) -> list[Limit]:
        """Return the limits of all clients, as far as they are known, and the ban. With a time, those of that time."""
        groups = [self.limits, *(limits for table in self._tables for limits in table.values())]
        groups += self.overrides.limits if self.overrides else ()
        groups += self._by_quotas.values() if self.lookup else ()
        if now is None or self.source.schedule is None:
            groups += self.ranges.values()
        else:
            groups[0] = self.ranges.get(self.source.schedule.at(now) or "", self.limits)
        every = [limit for limits in groups for limit in limits]
        ban = next((limit.ban for limit in every if limit.ban), self.ban)  # which shows a limit that is known
        return [*every, ban] if ban else every

    @property
    def may_decide_here(self) -> bool:
        """Whether a process may decide a request without its store."""
        is_inexact = self.source.consistency != "exact"
        return any(limit.lease for limit in self.all_limits()) or (self.lookup is not None and is_inexact)

    def check_cost(self, limits: Iterable[Limit] | None = None) -> None:
        """Raise ``ConfigError`` for a limit that rejects every request. Default: all limits that are known."""
        for limit in self.all_limits() if limits is None else limits:
            if limit.sheds:  # it counts requests, not their cost
                continue
            lowest = [limit, *limit.by_class.values()][-1]
            if lowest.tuning is not None:
                lowest = lowest.at(lowest.tuning.floor, "")
            if (self.fixed_cost or 0) > lowest.limit:
                which, effect = f"the limit {limit.text}", "every request is rejected"
                if lowest is not limit:
                    which, effect = f"{lowest.limit}, the smallest part of {which}", "its requests are rejected"
                raise ConfigError(f"the cost {self.fixed_cost} is above {which}, so {effect}")


def similar_names(names: Iterable[str], known: Iterable[str]) -> str:
    """Return a sentence with the known features that have a similar name; "" without any."""
    known = list(known)
    similar = (other for name in names for other in difflib.get_close_matches(name, known, 1, 0.75))
    return f" Did you mean {' and '.join(found)}?" if (found := dict.fromkeys(similar)) else ""


def words_of_entries(entries: Iterable[Sequence[str]]) -> str:
    """Return entries of a key as text, such as "email and user|ip"."""
    return " and ".join(map("|".join, entries))


def _by_value(parts: Sequence[Part], table: Mapping[str, Limits]) -> Chooser:
    def choose(features: Features, *_: object) -> Limits | list[Limits] | None:
        text = next((text for part in parts if (text := part.written(features)) is not None), "")
        return list(table.values()) if text is INVALID else table.get(text)

    return choose


def _by_function(lookup: LimitsLookup) -> Chooser:
    def choose(features: Features, _key: str, _now: int, lookups: Lookups) -> Limits | LimitsCall | None:
        known = lookups.known
        return known[lookup] if lookup in known else lookup.find(lookup.values(features), lookups)

    return choose


def _by_time(schedule: Schedule, ranges: Mapping[str, Limits]) -> Chooser:
    at, get = schedule.at, dict[str | None, Limits](ranges.items()).get

    def choose(_features: Features, _key: str, now: int, _lookups: object) -> Limits | None:
        return get(at(now))

    return choose


def _rate(limits: Iterable[Limit]) -> float:
    """Return the most that the limits allow per microsecond in the long run."""
    return min(limit.quota.amount / (limit.quota.period_us or 1) for limit in limits)
