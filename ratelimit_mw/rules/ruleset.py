"""All rules of a limiter: method, path, host and view in, a cached ``Plan`` out. Pure."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from ..clock import Clock
from ..errors import ConfigError, suggestion
from ..keys.features import Features
from ..keys.forms import normalize_host
from ..keys.key import NO_SECRET, Secret, warn_of_unknown_ip
from .access_lists import AccessLists
from .compiled import CompiledRule
from .marks import NOWHERE, Destination, Mark, ViewMarks
from .match import Match
from .named_rules import Amendment, NamedRule, check_unique, checked_rules, first_marks, named_rules
from .names import ascii_name
from .options import RuleDefaults
from .overrides import ClientBans, ClientOverride, OverrideTable
from .plan import Plan
from .priorities import DEFAULT_PRIORITIES, Priorities
from .routed import PathPatterns
from .rule import Rule

ALL_RULES: Final = "(all rules)"
"""The name of all rules, from which a client is banned, in messages."""
_MAX_CACHED: Final = 10_000
_MAX_CACHED_TEXT: Final = 256


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
        rules, amendments, defaults = checked_rules(rules), amendments or {}, defaults or {}
        firsts, self.marks = first_marks(marks, len(rules))  # each mark, with the number of its rule
        named = [each.complete(amendments, defaults, source) for each in named_rules(rules, firsts)]
        self._marked = [each.name for each in named[len(rules) :]]
        self.unused = {name: amendment for name, amendment in amendments.items() if name not in self._marked}
        self.enabled, self.secret = enabled, secret
        self.rules = self._compile(named, priorities, before or {})
        placed = zip(self.rules, named, strict=True)
        check_unique((limit.policy, each.title) for compiled, each in placed for limit in compiled.limits)
        self.by_name = {rule.name: rule for rule in self.rules}
        self.everywhere = self.rules[: len(rules)]  # those that are not on a view
        self.lists = self.own_lists = lists or AccessLists()
        """The lists with the bans of an operator, and ``own_lists`` without them."""
        self._index([each.rule.matches for each in named])
        self._by_request: dict[Hashable, Plan] = {}
        self._plans: dict[Hashable, Plan] = {}

    def _compile(
        self, named: Iterable[NamedRule], priorities: Priorities, before: Mapping[str, CompiledRule]
    ) -> list[CompiledRule]:
        """Compile rules, but for those of ``before`` that are the same."""
        warn, rules = functools.cache(warn_of_unknown_ip), []
        for each in named:
            rule = before.get(each.name)
            if rule is None or not rule.is_same(each, priorities):
                rule = CompiledRule(each, self.secret, warn, priorities)
            rule.places = each.places
            rules.append(rule)
        return rules

    def _index(self, matches: Sequence[Match]) -> None:
        """Index the rules by path, and note which values of a request a plan depends on."""
        matching = [(i, match) for i, match in enumerate(matches) if not match.is_only_named]
        self._pathless = tuple(i for i, match in matching if i < len(self.everywhere) and not match.paths)
        self._patterns = PathPatterns((i, path) for i, match in matching for path in match.paths)
        self._has_views = any(match.views for _, match in matching)
        self.needs_path = bool(self.lists.exempt) or any(match.paths for _, match in matching)
        self.needs_host = any(match.hosts for match in matches)
        self._needs_route = self.needs_path or self._has_views or self.needs_host

    @property
    def needs(self) -> tuple[str, ...]:
        """The features that the rules and lists use. Those of bans are among them, or ``ip``."""
        every = (*self.own_lists.needs, *(name for rule in self.rules for name in rule.source.needs))
        return tuple(dict.fromkeys(every))

    def plan_for_request(self, request: Any) -> Plan:
        """Return the plan of a request."""
        return self.plan(
            request.method,
            request.sent_path if self.needs_path else "",
            request.host if self.needs_host else "",
            request.to,
            request,
        )

    def plan(self, method: str, path: str, host: Any = "", to: Destination | None = None, request: Any = None) -> Plan:
        """Return the plan of a request that goes to a route, whose parameters are ``request.path_params``.

        Requests with the same rules get the same object.
        """
        key: Hashable = method  # short where it can be, because each request builds one
        if self._needs_route or (to is not None and to.marks is not None):
            path, host = path if self.needs_path else "", host if self.needs_host else ""
            key = to, method, path, host
        try:
            return self._by_request[key]
        except KeyError:
            return self._find_plan(key, to or NOWHERE, method, path, host, request)

    def plan_for_features(self, features: Features) -> Plan:
        """Return the plan of a request whose ``method``, ``path`` and ``host`` are features."""
        get = features.get
        if self._needs_route:
            return self.plan(get("method") or "", get("path") or "", get("host") or "")
        return self._by_request.get(method := get("method") or "") or self.plan(method, "")

    def named(self, name: str) -> CompiledRule:
        """Return the rule of a name; ``ConfigError`` for an unknown one."""
        rule = self.by_name.get(ascii_name(name))
        if rule is None:
            raise ConfigError(f"unknown rule {name!r}{suggestion(name, self.by_name)}")
        return rule

    @property
    def names_of_clients(self) -> list[str]:
        """The features that a ban from all rules can name: those that all requests have, or a rule uses."""
        names = dict.fromkeys(("ip", *self.needs))
        return [name for name in names if name not in ("path", "method", "host")]

    def override(self, overrides: Iterable[ClientOverride], clock: Clock) -> set[tuple[str, str]]:
        """Replace all overrides and bans. Return the names of rules with some that are not active, with the reasons.

        Those of other rules are left out: another application may have them. All plans are built anew.
        """
        by_rule: dict[str, list[ClientOverride]] = {}
        for each in overrides:
            by_rule.setdefault(each.rule, []).append(each)
        bans, names = by_rule.pop("", []), self.names_of_clients
        unknown = {part for each in bans for part in each.by if part.feature not in names}
        problems = {(ALL_RULES, f"no rule uses {part}") for part in unknown}
        bans = [each for each in bans if unknown.isdisjoint(each.by)]
        self.lists = self.own_lists.with_bans(ClientBans(bans, self.secret, clock)) if bans else self.own_lists
        for rule in self.rules:
            group = by_rule.get(rule.name)
            table = OverrideTable(group, rule.parse, clock) if group else None
            problems |= {(rule.name, str(error)) for error in table.errors} if table else set()
            rule.override(table)
        self._by_request, self._plans = {}, {}
        return problems

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

    def rule_of(self, mark: Mark) -> CompiledRule:
        return self.rules[self.marks[mark]]

    def plan_for_marks(
        self, marks: Iterable[Mark], method: str, host: Any, view: ViewMarks | None, lists: AccessLists | None
    ) -> Plan:
        """Return the plan of these marks alone, without those that do not apply or that ``view`` is exempt from.

        ``lists`` are those of the plan for the whole request.
        """
        return self._matching_plan(sorted({self.marks[mark] for mark in marks}), method, host, view, lists)

    def plan_for_rule(self, name: str, lists: AccessLists | None) -> Plan:
        """Return the plan of one rule, with the lists of a request."""
        return self._plan_of((list(self.by_name).index(name),), lists)

    def check_exemptions(self, marks: ViewMarks) -> None:
        """Raise ``ConfigError`` when a view is exempt from a rule that does not exist."""
        for name in set(marks.exempt or ()).difference(self.by_name):
            message = f"unknown rule {name!r}{suggestion(name, self.by_name)}"
            raise ConfigError(message, of=f"@exempt on {marks.exempt_on}")

    def _find_plan(self, key: Hashable, to: Destination, method: str, path: str, host: Any, request: Any) -> Plan:
        """Match path and route, and cache the plan: the rules of the settings, then those marked on the view."""
        self.require_complete()
        by_request = self._by_request  # ``override`` replaces it, so no plan from before comes after
        params = functools.partial(getattr, request, "path_params", {})
        numbers = sorted(self._patterns.match(path, to, params).union(self._pathless))
        if self._has_views:
            numbers = [i for i in numbers if self.rules[i].source.matches.takes_view(to.view)]
        numbers += dict.fromkeys(self.marks[mark] for mark in to.marks.marks) if to.marks else ()
        lists = self.lists.at(path, to)
        plan = self._matching_plan(numbers, method, normalize_host(host), to.marks, lists)
        if len(f"{method}{path}{host}") <= _MAX_CACHED_TEXT:
            if len(by_request) >= _MAX_CACHED:
                by_request.clear()
            by_request[key] = plan
        return plan

    def _matching_plan(
        self, numbers: Sequence[int], method: str, host: Any, view: ViewMarks | None, lists: AccessLists | None
    ) -> Plan:
        """Return the plan of those rules that apply."""
        method = str.upper(method)  # an error for bytes, which would match no method
        if view is not None and view.exempt is not None:
            inside = {self.marks[mark] for mark in view.inside}
            numbers = [i for i in numbers if i in inside or not view.is_exempt_from(self.rules[i].name)]
        if view is not None and view.is_static:
            numbers = [i for i in numbers if self.rules[i].source.matches.route_field]
        own = view is not None and view.answers_options and method == "OPTIONS"
        return self._plan_of(
            tuple([i for i in numbers if self.rules[i].source.matches.takes(method, host, own)]), lists
        )

    def _plan_of(self, applying: tuple[int, ...], lists: AccessLists | None) -> Plan:
        """Return the plan of these rules. Clients cannot fill a cache without bound."""
        key, plans = (applying, lists and lists.is_exempt), self._plans
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= _MAX_CACHED:
                plans.clear()
            plan = Plan([self.rules[i] for i in applying], lists) if self.enabled else Plan(())
            plans[key] = plan
        return plan
