"""A ``Rule``: which requests, which key, which quotas, which algorithm. Checked when built; decides nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import tzinfo
from typing import Any, Final, Unpack, cast

from ..algorithms import build_limit
from ..decision import BanTerms
from ..errors import ConfigError, error_of, error_path, join_path, path_of
from ..keys.features import SHARED_FEATURES
from ..keys.parts import Part, part_of, spellings
from ..quota import Quota, parse_quotas
from .declaration import check_names, decode, defaults_of, document, options_of
from .lookup import function_of
from .match import Match, MatchOptions, checked_method
from .options import LIMITS_MEANING, Limits, RuleDefaults, RuleOptions
from .paths import Captures
from .places import Location
from .priorities import PRIORITY
from .schedule import Schedule
from .values import FeatureCost, checked_table, counted_statuses

_DEFAULTS: Final = defaults_of(RuleOptions)
_LEASE_PERCENT: Final = 2
_ADD: Final = "Add a limit such as "
_USES: Final = {
    "max_waiting": "Set wait",
    "limits_ttl": "Let a function return the limits",
    "timezone": 'Add a schedule, or a limit such as "100 per calendar month"',
    "wait": f'{_ADD}"2 concurrent"',
    "hold_at_most": f'{_ADD}"2 concurrent"',
    "tune": f'{_ADD}"adaptive 10..100/second"',
    "target": f'{_ADD}"adaptive 5..200 concurrent", or set tune = "health" for an adaptive rate',
    **dict.fromkeys(("algorithm", "cost", "count_when", "count_unless", "reserve"), f'{_ADD}"100/minute"'),
}
"""The options that only some rules use, and what to write for a rule that uses them."""
_NEEDED: Final = {"tune": 'tune = "demand", or "health"', "target": 'target = "250ms"'}
_NOT_TOGETHER: Final = (("ban", "wait"), ("ban", "target"), ("ban", "tune"), ("wait", "target"), ("wait", "tune"))

Tables = tuple[tuple[Part | None, dict[str, tuple[Quota, ...]]], ...]
_PRIORITY: Final = part_of(PRIORITY)


@document(RuleOptions, limits=LIMITS_MEANING)
class Rule:
    """One rule: the limits for the requests that match, counted per key. All requests share it, so it never changes.

    Raises:
        ConfigError: An option is unknown or impossible. The message names the option.

    Example:
        >>> rule = Rule(name="login", limits="5/minute; 20/hour", key=["endpoint", "user|ip"])
        >>> [str(quota) for quota in rule.quotas], rule.entries
        (['5/minute', '20/hour'], (('endpoint',), ('user', 'ip')))
    """

    _is_built = False

    def __init__(self, *, limits: Limits, **options: Unpack[RuleOptions]) -> None:
        self._build({"limits": limits, **options}, {}, Location(), ())

    def _build(
        self, given: Mapping[str, Any], defaults: RuleDefaults, place: Location, inherited: Collection[str]
    ) -> None:
        """Set and check all options. Those that are ``inherited`` from another rule may have no effect."""
        name, options = given.get("name"), {**defaults, **given}
        self.limits: Limits = options.pop("limits")
        self.given, self.place = given, place
        self.defaulted = tuple(option for option in defaults if option not in given)
        """The options from [defaults]."""
        with error_of(f'rule "{name}"' if name else ""):
            check_rule_names(options, options_of(RuleOptions))
            decoded = decode(RuleOptions, options)
            self.options = cast(RuleOptions, {**_DEFAULTS, **options})
            """All of them, including those with their default."""
            self._keep(decoded)
            self._combine(decoded)
            self._check_combinations()
            self._check_unused(inherited)
        self._is_built = True

    def __setattr__(self, name: str, value: object) -> None:
        if self._is_built:
            raise AttributeError(f"a rule never changes. Build another one for another {name}")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and (self.limits, self.options) == (other.limits, other.options)

    def __hash__(self) -> int:
        return hash(self.name)  # the other options may be tables, which have no hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options, from which the rule is built again."""
        options: Mapping[str, Any] = self.options
        defaults = {name: options[name] for name in self.defaulted}
        return build_rule, (self.given, defaults, self.place, self.given)

    def _keep(self, decoded: Mapping[str, Any]) -> None:
        """Set what one option decides."""
        self.name: str | None = decoded["name"]
        self.algorithm: Any = decoded["algorithm"]
        self.cost: int | FeatureCost | Callable[[Any], int] = decoded["cost"]
        self.unit: str = decoded["unit"]
        self.when_missing: str = decoded["when_missing"]
        self.mode: str = decoded["mode"]
        self.on_store_error: str | None = decoded["on_store_error"]
        self.entries: tuple[tuple[Part, ...], ...] = decoded["key"]
        self.matches: Match = decoded["match"]
        self.timezone: tzinfo = decoded["timezone"]
        self.limits_ttl_us: int = decoded["limits_ttl"]
        self.wait_us: int = decoded["wait"] or 0
        self.max_waiting: int = decoded["max_waiting"]
        self.hold_us: int = decoded["hold_at_most"]
        self.target_us: int = decoded["target"] or 0
        self.tune: str | None = decoded["tune"]
        self.reserve: Mapping[str, int] = decoded["reserve"]
        self.unrouted: bool = decoded["unrouted"]
        self.ban: BanTerms | None = decoded["ban"]

    def _combine(self, decoded: Mapping[str, Any]) -> None:
        """Set what depends on several options."""
        with error_path("per"):
            per = [part_of(name, in_key=False) for name in decoded["per"]]
        with error_path("limits"):
            matched = (part for part, _ in self.matches.features)
            self.function, self.arguments = function_of(self.limits, self.entries, (*matched, *per))
            """The function of ``limits``, and the parts that it is passed, with their alternatives."""
            self.quotas: tuple[Quota, ...] = () if self.function else parse_limits(self, self.limits)
        self.tables = self._tables(decoded["per_key"], decoded["per"], per)
        scheduled = self._limits_by_value("schedule", decoded["schedule"])
        with error_path("schedule"):
            self.schedule = Schedule(scheduled, self.timezone) if scheduled else None
        self.statuses = counted_statuses(decoded["count_when"], decoded["count_unless"])
        self.is_marked = bool((self.options["count_when"] or {}).get("marked"))
        self.consistency, self.lease_percent = self._share(decoded["consistency"], decoded["lease"])
        self._name_parts()

    def _name_parts(self) -> None:
        """Set the parts and the features that the rule reads, in a stable order."""
        others = [part for part, _ in (*self.matches.features, *self.tables) if part]
        read = [*itertools.chain(*self.entries, *self.arguments), *others, *([_PRIORITY] if self.reserve else [])]
        cost = self.cost.parts if isinstance(self.cost, FeatureCost) else ()
        self.captures = Captures(self.matches.paths, [part.feature for part in (*read, *cost)])
        """The parameters of its path patterns that the rule counts or matches by."""
        self.parts = tuple(dict.fromkeys((*read, *cost, *([part_of("path")] if self.captures.names else []))))
        """The parts of the key, of ``match``, of ``per`` and of the cost."""
        self.needs = tuple(dict.fromkeys(part.feature for part in self.parts))
        """The features that the rule uses besides method, path and host."""
        looked_at = {"path", *(part.feature for part in read)}
        self.needs_without_cost = tuple(name for name in self.needs if name in looked_at)
        """The features that the rule uses where its limits are only looked at, which consumes nothing."""

    def _tables(self, per_key: Any, per: Mapping[str, Any], parts: Iterable[Part]) -> Tables:
        """Limits by value for each part of ``per``; those of ``per_key`` come first, under None."""
        if per_key and len(self.entries) != 1:
            raise ConfigError("per_key needs a key of one part. Use per, or a rule of its own", "per_key")
        tables: list[tuple[Part | None, dict[str, tuple[Quota, ...]]]] = []
        if per_key:
            tables.append((None, self._limits_by_value("per_key", per_key, *self.entries[0])))
        for part, (name, table) in zip(parts, per.items(), strict=True):
            tables.append((part, self._limits_by_value(join_path("per", path_of(name)), table, part)))
        return tuple(tables)

    def _limits_by_value(self, path: str, table: object, *parts: Part) -> dict[str, tuple[Quota, ...]]:
        """Return the quotas of each value, under all its forms in requests. A value as written has precedence."""
        limits: dict[str, tuple[Quota, ...]] = {}
        others: dict[str, tuple[Quota, ...]] = {}
        with error_path(path):
            for value, quotas in checked_table(table).items():
                with error_path(f"[{value!r}]"):
                    if parts == ("method",):
                        checked_method(value)
                    limits[str(value)] = parse_limits(self, quotas)
                    for part in parts:
                        others |= dict.fromkeys(spellings(part, str(value)), limits[str(value)])
        return {**others, **limits}

    def _check_unused(self, inherited: Collection[str]) -> None:
        """Raise ``ConfigError`` for an option of the rule itself that has no effect."""
        used = set[str]().union(*(_used_by(quota, self.tune) for quota in self._every_quota))
        if self.wait_us:
            used.add("max_waiting")
        if self.schedule:
            used.add("timezone")
        if self.function is not None:  # which may return limits of any kind
            used |= _USES.keys() - {"max_waiting"}
        for option, fix in _USES.items():
            if not (option in used or option in inherited or self.given.get(option) in (None, {})):
                raise ConfigError(f"no limit of the rule uses it. {fix}, or remove {option}", option)

    def _check_combinations(self) -> None:
        if self.ban and not any(SHARED_FEATURES.isdisjoint(part.feature for part in parts) for parts in self.entries):
            key = list(map("|".join, self.entries))
            problem = f"key = {key} is the same for many clients, so one would ban the others"
            raise ConfigError(f'{problem}. Add a feature of the client, such as "ip"', "ban")
        options: Mapping[str, object] = self.options
        for option, other in _NOT_TOGETHER:
            if options[option] and options[other]:
                raise ConfigError(f"cannot be combined with {other}. Remove one, or write two rules", option)
        if self.reserve and isinstance(self.algorithm, Mapping) and self.algorithm.get("count_rejected"):
            raise ConfigError("cannot be combined with count_rejected. Remove one", "reserve")

    def _share(self, consistency: str, percent: int | None) -> tuple[str, int]:
        """Return the consistency, and the share of a lease. A lease alone means "leased".

        A rule that cannot have the consistency of [defaults] is exact.
        """
        is_own = "consistency" in self.given
        if consistency == "exact" and (percent is None or is_own):
            return consistency, 0
        name, option = ("consistency", 'consistency = "leased"') if percent is None else ("lease", "lease")
        has_options = isinstance(self.algorithm, Mapping) and len(self.algorithm) > 1
        counts_otherwise = self.statuses is not None or self.ban is not None or has_options or self.reserve
        problem = ""
        if self.mode == "shadow" or counts_otherwise:
            others = 'mode = "shadow", ban, reserve, count_when, count_unless or an algorithm with options'
            problem = f"{option} cannot be combined with {others}"
        elif self.quotas and all(quota.concurrent or quota.calendar or quota.floor for quota in self.quotas):
            problem = f"adaptive limits, concurrency limits and calendar quotas are always exact. Remove {option}"
        if problem and (is_own or percent is not None):
            raise ConfigError(problem, name)
        if problem:
            self.options["consistency"] = "exact"
            return "exact", 0
        return "leased", percent or _LEASE_PERCENT

    @property
    def _every_quota(self) -> Iterable[Quota]:
        """The quotas of all clients and times, as far as they are known."""
        tables = (quotas for _, table in self.tables for quotas in table.values())
        return itertools.chain(self.quotas, *tables, *(self.schedule.limits.values() if self.schedule else ()))

    @property
    def has_calendar(self) -> bool:
        """Whether a quota of the rule is one of a calendar."""
        return any(quota.calendar for quota in self._every_quota)

    @property
    def adapts(self) -> bool:
        """Whether the rule has an option of adaptive limits."""
        return bool(self.target_us or self.tune)

    @property
    def set_options(self) -> dict[str, Any]:
        """The options without those that have their default."""
        return {name: value for name, value in self.options.items() if value != _DEFAULTS[name]}

    def __repr__(self) -> str:
        options = {"limits": self.limits, **self.set_options}
        return f"Rule({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def parse_limits(rule: Rule, limits: object) -> tuple[Quota, ...]:
    """Parse quotas, and check them with the options of the rule: a burst or a period may not fit its algorithm."""
    options: Mapping[str, object] = rule.options
    quotas = tuple(quota.in_zone(str(rule.timezone)) for quota in parse_quotas(limits))
    for i, quota in enumerate(quotas):
        with error_path(f"[{i}]"):
            build_limit("", 0, quota, rule.algorithm)
            for option, example in _NEEDED.items():
                if option in _used_by(quota, rule.tune) and not options[option]:
                    raise ConfigError(f"{str(quota)!r} needs {option}. Write {example} in the rule")
    return quotas


def _used_by(quota: Quota, tune: str | None) -> set[str]:
    """Return the options that a limit uses, but not each limit."""
    if quota.floor is not None and quota.concurrent:
        return {"target"}
    used = {"cost", "reserve"}
    if quota.concurrent:
        return used | {"wait", "hold_at_most"}
    used |= {"count_when", "count_unless"}
    if quota.calendar:
        return used | {"timezone"}
    used |= {"algorithm"}
    if quota.floor is not None:
        return used | {"tune"} | ({"target"} if tune == "health" else set())
    return used


def build_rule(
    options: Mapping[str, Any],
    defaults: RuleDefaults,
    place: Location = Location(),  # noqa: B008
    inherited: Collection[str] = (),
) -> Rule:
    """Build a rule with these options, among them ``limits``, and with defaults for others.

    Raises:
        ConfigError: The rule is impossible. The message names the defaults where it is possible without them.
    """
    rule = object.__new__(Rule)
    try:
        rule._build(options, defaults, place, inherited)
    except ConfigError as error:
        if not (added := [name for name in defaults if name not in options]):
            raise
        try:
            object.__new__(Rule)._build(options, {}, place, inherited)
        except ConfigError:
            raise error from None
        message = f"{error.message}. The rule has {', '.join(added)} from [defaults]"
        raise ConfigError(message, error.path, error.of) from None
    return rule


def with_defaults(rule: Rule, defaults: RuleDefaults) -> Rule:
    """Return the rule with these options instead of those that it was not given."""
    if defaults.keys() <= {*rule.given, *rule.defaulted}:
        return rule
    return build_rule(rule.given, defaults, rule.place)


def check_rule_names(options: Iterable[str], known: Collection[str], noun: str = "option") -> None:
    """``ConfigError`` for an option that no rule has. Those of other packages may be fields of ``match`` here."""
    for name in options_of(MatchOptions):
        if name in options:
            raise ConfigError('a field of match. Write it there, as in match = {methods = ["POST"]}', name)
    check_names(options, known, noun)


def check_options(options: Mapping[str, Any]) -> Rule:
    """Return a rule with some options of a rule whose limits and key are not known; check the options."""
    # The limits of a function, which is never called here, fit any algorithm, slots and times.
    return build_rule({"limits": lambda *_: None, "key": "user", **options}, {}, inherited=options.keys())
