"""All rules of a limiter: method, path, host and view in, a cached ``Plan`` out. Pure."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..decision import Hit
from ..errors import ConfigError, error_of, error_path, suggestion
from ..keys.features import Features
from ..keys.forms import normalize_host
from ..keys.key import warn_of_unknown_ip
from ..keys.secret import NO_SECRET, Secret
from .access_lists import AccessLists
from .client_key import ClientKeyError
from .compiled import CompiledRule
from .lookup import Found, LimitsCall
from .marks import NOWHERE, Destination, Mark, MessageMark, ViewMarks
from .names import printable
from .options import RuleDefaults
from .places import DEFAULTS, Location
from .plan import Plan
from .priorities import DEFAULT_PRIORITIES, Priorities
from .routed import PathPatterns
from .rule import Rule, amended, with_defaults

_MAX_CACHED: Final = 10_000
_MAX_CACHED_TEXT: Final = 256
_NUMBER: Final = re.compile(r"-\d+\Z")
"""The number of a limit behind the name of its rule."""


class Amendment(NamedTuple):
    """The options that ``rules[position]`` of the settings gives to replace those of a decorator's rule."""

    position: int
    options: Mapping[str, Any]


class RuleSet:
    """Rules with unique names. While an amendment has no mark, no plan is built: see ``require_complete``.
    Where it is not ``enabled``, all plans are empty. Rules of ``before`` that are the same keep the limits they know.
    ``source`` is the settings file with the amendments and the defaults.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        marks: Iterable[Mark] = (),
        amendments: Mapping[str, Amendment] | None = None,
        lists: AccessLists | None = None,
        secret: Secret = NO_SECRET,
        defaults: RuleDefaults | None = None,
        enabled: bool = True,
        source: str = "",
        priorities: Priorities = DEFAULT_PRIORITIES,
        before: Mapping[str, CompiledRule] | None = None,
    ) -> None:
        rules, amendments, before = checked_rules(rules), amendments or {}, before or {}
        everywhere = len(rules)
        marks, self._of_mark = _number_marks(marks, everywhere)
        names = [rule.name or f"rule-{i + 1}" for i, rule in enumerate(rules)] + _names(marks)
        places = [rule.place.path or f"rules[{i}]" for i, rule in enumerate(rules)]
        places += [f"the limit on {mark.view}" for mark in marks]
        _check_unique(zip(names, places, strict=True))
        self._marked = names[len(rules) :]
        self.unused = {name: amendment for name, amendment in amendments.items() if name not in self._marked}
        rules = [with_defaults(rule, defaults or {}) for rule in rules]
        rules += [_marked_rule(*each, amendments, defaults or {}) for each in zip(marks, self._marked, strict=True)]
        warn = functools.cache(warn_of_unknown_ip)
        may_hold = [True] * everywhere + [not isinstance(mark, MessageMark) for mark in marks]
        shown = names[:everywhere] + _shown_names(marks, names[:everywhere])
        self.rules = [
            old
            if (old := before.get(name)) and old.is_same(rule, holds, seen, priorities)
            else CompiledRule(rule, name, secret, warn, holds, seen, priorities)
            for rule, name, holds, seen in zip(rules, names, may_hold, shown, strict=True)
        ]
        self.by_name = dict(zip(names, self.rules, strict=True))
        decorators = [*[""] * everywhere, *(mark.place.rpartition(" at ")[2] for mark in marks)]
        for compiled, rule, decorator in zip(self.rules, rules, decorators, strict=True):
            compiled.places = _places(rule, compiled.name, decorator, amendments.get(compiled.name), source)
            with compiled.located("reserve"):
                priorities.check(rule.reserve)
        placed = zip(self.rules, places, strict=True)
        _check_unique((limit.policy, place) for each, place in placed for limit in each.limits)
        self.enabled = enabled
        self.lists = self.own_lists = lists or AccessLists()
        """The lists with the bans of an operator, and ``own_lists`` without them."""
        self.secret = secret
        self.needs_host = any(rule.matches.hosts for rule in rules)
        self.everywhere = self.rules[:everywhere]  # those that are not on a view
        matching = [(i, rule) for i, rule in enumerate(rules) if not rule.matches.is_only_named]
        self._pathless = tuple(i for i, rule in matching if i < everywhere and not rule.matches.paths)
        self._patterns = PathPatterns((i, path) for i, rule in matching for path in rule.matches.paths)
        self.needs_path = self.lists.has_paths or any(rule.matches.paths for _, rule in matching)
        self._has_views = any(rule.matches.views for _, rule in matching)
        self.needs_route = self.needs_path or self._has_views
        self._needs_place = self.needs_route or self.needs_host
        self._by_request: dict[Hashable, Plan] = {}
        self._plans: dict[Hashable, Plan] = {}

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that the rules and lists use."""
        return tuple(dict.fromkeys((*self.lists.needs, *(name for rule in self.rules for name in rule.source.needs))))

    def plan_for(self, request: Any, to: Destination | None = None) -> Plan:
        """Return the plan of a request that goes to a route."""
        return self.plan(
            request.method,
            request.sent_path if self.needs_path else "",
            request.host if self.needs_host else "",
            to,
            request,
        )

    def plan(self, method: str, path: str, host: Any = "", to: Destination | None = None, request: Any = None) -> Plan:
        """Return the plan of a request that goes to a route, whose parameters are ``request.path_params``.

        Requests with the same rules get the same object.
        """
        key: Hashable = method  # short where it can be, because each request builds one
        if self._needs_place or (to is not None and to.marks is not None):
            key = to, method, path if self.needs_path else "", host if self.needs_host else ""
        try:
            return self._by_request[key]
        except KeyError:
            return self._find_plan(key, to or NOWHERE, method, path, host, request)

    def keys(self, name: str, features: Features, found: Found) -> list[str] | LimitsCall:
        """Return all keys that a rule can count these features under; ``ConfigError`` when it has none."""
        rule, key, features = self._keyed(name, features)
        known = rule.limits_of(features, key, found) if rule.lookups else None
        if isinstance(known, LimitsCall):
            return known
        limits = rule.all_limits()  # those of functions are known now, with their periods, which the keys have
        if limits or known is not None:
            return list(dict.fromkeys(limit.prefix + key for limit in limits))
        raise ConfigError(f"the limits of rule {name!r} are not known, because their function failed")

    def hits(self, name: str, features: Features, found: Found) -> list[Hit] | LimitsCall:
        """Return the hits, without a cost, of these features on one rule; ``ConfigError`` when it has no key."""
        rule, key, features = self._keyed(name, features)
        limits = rule.limits_of(features, key, found)
        if isinstance(limits, LimitsCall):
            return limits
        return [Hit(limit, limit.prefix + key, 0) for limit in limits or () if not limit.sheds]

    def named(self, name: str) -> CompiledRule:
        """Return the rule of a name; ``ConfigError`` for an unknown one."""
        rule = self.by_name.get(printable(name))
        if rule is None:
            raise ConfigError(f"unknown rule {name!r}{suggestion(name, self.by_name)}")
        return rule

    def _keyed(self, name: str, features: Features) -> tuple[CompiledRule, str, Features]:
        """Return a rule, its key with these features, and the features with their captures."""
        rule = self.named(name)
        features = rule.captures.add(features)
        key = rule.build_key(features)
        if key is None:
            raise ClientKeyError(rule, features)
        return rule, key, features

    def forget_plans(self) -> None:
        """Build each plan anew, because the limits of single clients have changed."""
        self._by_request, self._plans = {}, {}

    def require_complete(self) -> RuleSet:
        """Return the rule set; ``ConfigError`` when the settings override a rule that no decorator has."""
        for name, amendment in self.unused.items():
            message = f"no decorator has a rule named {name!r}{suggestion(name, self._marked)}"
            raise ConfigError(message, f"rules[{amendment.position}].overrides")
        return self

    def without_amendments(self) -> RuleSet:
        """Return these rules for a middleware that does not see the decorators."""
        rules = copy.copy(self)
        rules.unused = {}
        return rules

    @property
    def marks(self) -> Iterable[Mark]:
        return self._of_mark

    def rule_of(self, mark: Mark) -> CompiledRule:
        return self.rules[self._of_mark[mark]]

    def plan_of(
        self, marks: Iterable[Mark], method: str, host: Any, view: ViewMarks | None, lists: AccessLists | None
    ) -> Plan:
        """The plan of these marks alone, without those that do not apply or that ``view`` is exempt from.

        ``lists`` are those of the plan for the whole request.
        """
        return self._plan_of(sorted({self._of_mark[mark] for mark in marks}), method, host, view, lists)

    def plan_named(self, name: str, lists: AccessLists | None) -> Plan:
        """The plan of one rule, with the lists of a request."""
        return self._plan((list(self.by_name).index(name),), lists)

    def check(self, view: ViewMarks) -> None:
        """``ConfigError`` when a view is exempt from a rule that does not exist."""
        for name in set(view.exempt or ()).difference(self.by_name):
            message = f"unknown rule {name!r}{suggestion(name, self.by_name)}"
            raise ConfigError(message, of=f"@exempt on {view.exempt_on}")

    def _find_plan(self, key: Hashable, to: Destination, method: str, path: str, host: Any, request: Any) -> Plan:
        """Match path and route, and cache the plan: the rules of the settings, then those marked on the view."""
        self.require_complete()
        by_request = self._by_request  # ``forget_plans`` replaces it, so no plan from before comes after
        path, host = path if self.needs_path else "", host if self.needs_host else ""
        params = functools.partial(getattr, request, "path_params", {})
        found = self._patterns.match(path, to, params) if self.needs_path else set[int]()
        numbers = sorted(found.union(self._pathless))
        if self._has_views:
            numbers = [i for i in numbers if self.rules[i].source.matches.takes_view(to.view)]
        numbers += dict.fromkeys(self._of_mark[mark] for mark in to.marks.marks) if to.marks else ()
        lists = self.lists.at(path, to, params)
        plan = self._plan_of(numbers, method, normalize_host(host) if host else "", to.marks, lists)
        if len(f"{method}{path}{host}") <= _MAX_CACHED_TEXT:
            if len(by_request) >= _MAX_CACHED:
                by_request.clear()
            by_request[key] = plan
        return plan

    def _plan_of(
        self, numbers: Sequence[int], method: str, host: Any, view: ViewMarks | None, lists: AccessLists | None
    ) -> Plan:
        """The plan of those rules that apply."""
        method = method.upper()
        if view is not None and view.exempt is not None:
            inside = {self._of_mark[mark] for mark in view.inside}
            numbers = [i for i in numbers if i in inside or not view.is_exempt_from(self.rules[i].name)]
        if view is not None and view.is_static:
            numbers = [i for i in numbers if self.rules[i].source.matches.place]
        own = view is not None and view.answers_options and method == "OPTIONS"
        return self._plan(tuple([i for i in numbers if self.rules[i].source.matches.takes(method, host, own)]), lists)

    def _plan(self, applying: tuple[int, ...], lists: AccessLists | None) -> Plan:
        """The plan of these rules. Clients cannot fill a cache without bound."""
        key, plans = (applying, lists and lists.matched), self._plans
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= _MAX_CACHED:
                plans.clear()
            plan = Plan([self.rules[i] for i in applying], lists) if self.enabled else Plan(())
            plans[key] = plan
        return plan


def checked_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules as a list; ``ConfigError`` for anything else."""
    if isinstance(rules, str | Mapping) or not isinstance(rules, Iterable):
        kind = type(rules).__name__
        raise ConfigError(f'expected a list of rules such as [Rule(limits="5/minute")]; got {kind}', "rules")
    checked = list(rules)
    for i, rule in enumerate(checked):
        if not isinstance(rule, Rule):
            raise ConfigError(f"expected a Rule; got {rule!r}", f"rules[{i}]")
    return checked


def _number_marks(marks: Iterable[Mark], start: int) -> tuple[list[Mark], dict[Mark, int]]:
    """The first mark of each rule, and the number of each mark's rule.

    A limit object on several views is one rule with one count. The first of the views gives it its name.
    """
    marks, firsts = list(marks), dict[int, Mark]()
    for mark in marks:
        firsts[id(mark.rule)] = min(mark, firsts.get(id(mark.rule), mark), key=lambda mark: mark.order)
    numbers = {rule: i for i, rule in enumerate(firsts, start)}
    return list(firsts.values()), {mark: numbers[id(mark.rule)] for mark in marks}


def _names(marks: Sequence[Mark]) -> list[str]:
    """The names of marked rules: "module.view", and "module.view#2" for the next one on a view of that name."""
    names: list[str] = []
    times: Counter[str] = Counter()
    for mark in marks:
        view = printable(mark.view)
        times[view] += not mark.rule.name
        names.append(mark.rule.name or (view if times[view] == 1 else f"{view}#{times[view]}"))
    return names


def _shown_names(marks: Iterable[Mark], others: Iterable[str]) -> list[str]:
    """The names of marked rules that clients see: "view" for "module.view", and "view#2" for the next of that name."""
    given = [*others, *(mark.rule.name for mark in marks if mark.rule.name)]
    taken = {*given, *(_NUMBER.sub("", name) for name in given)}
    shown: list[str] = []
    for mark in marks:
        view = printable(mark.view).rpartition(".")[2]
        possible = itertools.chain([view], map(f"{view}#{{}}".format, itertools.count(2)))
        shown.append(mark.rule.name or next(name for name in possible if name not in taken))
        taken.add(shown[-1])
    return shown


def _places(rule: Rule, name: str, decorator: str, amendment: Amendment | None, source: str) -> dict[str, Location]:
    """Where a rule is written, and where the options are that the settings give to it.

    Args:
        rule: The rule.
        name: Its name.
        decorator: The file and line of its decorator, "" for none.
        amendment: The changes to it in the settings.
        source: The settings file, "" for none.
    """
    label = f"rule {name!r}"
    place = rule.place._replace(label=f"{decorator}: {label}" if decorator else label)
    if place.file:
        label = f'{place.path} "{name}"' if place.path.endswith("]") else place.path
        place = place._replace(label=label)
    places = {"": place}
    if source and amendment is not None:
        path = f"rules[{amendment.position}]"
        options = {*amendment.options, *(["cost"] if "limits" in amendment.options else ())}  # they are wrong together
        places |= dict.fromkeys(options, Location(source, path, f'{path} "{name}"'))
    for option in rule.defaulted if source else ():
        places[option] = Location(source, DEFAULTS, label, f". The rule has {option} from [defaults]")
    return places


def _marked_rule(mark: Mark, name: str, amendments: Mapping[str, Amendment], defaults: RuleDefaults) -> Rule:
    """A decorator's rule, with the options that the settings override, and with their defaults."""
    rule = mark.rule
    if isinstance(mark, MessageMark):  # messages have no outcomes
        defaults = {**defaults, "count_when": None}
    if name not in amendments:
        with error_of(f"the limit on {mark.view}"):
            return with_defaults(rule, defaults)
    amendment = amendments[name]
    with error_path(f"rules[{amendment.position}]"):
        rule = amended(rule, amendment.options, defaults)
        if field := rule.matches.place:
            raise ConfigError(
                f"the view of {name!r} has the {field} of its route. Remove match.{field}", f"match.{field}"
            )
    return rule


def _check_unique(names: Iterable[tuple[str, str]]) -> None:
    """``ConfigError`` for a name that occurs twice. ``names`` are pairs of a name and its place."""
    seen: dict[str, str] = {}
    for name, place in names:
        if name in seen:
            settings = [each for each in (place, seen[name]) if each.startswith("rules[")]
            wrong, other = (place, seen[name]) if place in settings or not settings else (seen[name], place)
            message = f"the name {name!r} is already used by {other}. Give each rule a name of its own"
            raise ConfigError(message, f"{wrong}.name" if settings else wrong)
        seen[name] = place
