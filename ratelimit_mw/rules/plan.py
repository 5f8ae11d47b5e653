"""A ``Plan``: the rules that apply to a request, and the features they need. One per combination of rules; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

from ..clock import SECOND, Clock, now_us
from ..decision import BannedVerdict, Hit, Limit, Verdict, decide_without_store, make_hit
from ..keys.features import Features
from .access_lists import AccessLists
from .compiled import CompiledRule
from .lookup import Found, LimitsCall
from .priorities import PRIORITY
from .schedule import Schedule

REQUEST_START: Final = "request_start"
"""The feature with the time at which a proxy received the request, in seconds since 1970."""
OPTIONAL: Final = (PRIORITY, REQUEST_START)
"""The features that a plan with adaptive limits reads where something provides them."""
Single = tuple[Limit, Callable[[Features], str | None], int]
Gate = Callable[[Features], Hit | None]
Choose = Callable[[Features, Clock], tuple[Limit, str, int] | None]


class Plan:
    """The rules that apply to one request.

    ``single`` is the fast path for one limit of the store: the limit, its key, its cost. ``gate`` returns the hit of a
    request on one limit that sheds.
    """

    def __init__(self, rules: Sequence[CompiledRule], lists: AccessLists | None = None, costs: bool = True) -> None:
        self.rules = tuple(rules)
        self._choosers = {rule: rule.choosers for rule in rules if rule.varies}
        self.lists = lists if lists is not None and (lists.needs or lists.matched) else None
        self.is_empty = not (self.rules or self.lists)
        listed = self.lists.needs if self.lists else ()
        needs = (rule.needs if costs else rule.source.needs_without_cost for rule in rules)
        self.required = self.needs = tuple(dict.fromkeys((*listed, *(name for names in needs for name in names))))
        self.limits = tuple(limit for rule in rules for limit in rule.limits)
        every = [limit for rule in rules for limit in rule.all_limits()]
        calls_functions = any(rule.lookups for rule in rules)
        self.looks_up = calls_functions or any(rule.ranges for rule in rules)
        """Whether limits depend on the time, or come from functions, which may return any."""
        self.has_slots = calls_functions or any(limit.quota.concurrent for limit in every)
        self.adapts = any(limit.quota.floor for limit in every) or any(r.lookups and r.source.adapts for r in rules)
        """Whether limits follow the load of this process."""
        if self.adapts:
            self.needs = (*self.required, *(name for name in OPTIONAL if name not in self.required))
        self.counts_outcomes = any(rule.source.statuses is not None for rule in rules)
        self.adds_hits = self.counts_outcomes or any(rule.ban is not None for rule in rules)
        """Whether the store decides more hits than those of the limits: before outcomes, and on bans."""
        self.true_costs = tuple((rule.name, rule.source.true_cost) for rule in rules if rule.source.true_cost)
        """The rules whose true cost is in a header of the response."""
        self.needs_settlement = bool(self.has_slots or self.counts_outcomes or self.true_costs or self.adapts)
        self.ends_with_body = self.has_slots or any(rule.source.is_marked for rule in rules)
        self.waits = any(rule.source.wait_us for rule in rules)
        """Whether a request may wait for a slot."""
        self.delays = any(limit.algorithm.delays for limit in every)
        """Whether a rule has a queue, so that an allowed request may have to wait."""
        self.may_delay = calls_functions or self.delays
        single = self._single()
        self.single: Single | None = None if self.adapts else single
        self.gate: Gate | None = _gate(self.rules[0], *single) if single and self.adapts else None
        self.choose = self._choose()

    def _single(self) -> Single | None:
        if len(self.rules) != 1 or len(self.limits) != 1 or self.lists or self.adds_hits:
            return None
        if self.looks_up or self.waits:
            return None
        rule, limit = self.rules[0], self.limits[0]
        if rule.tables or rule.shadow or rule.where or rule.capture or rule.rejects_missing or rule.fixed_cost is None:
            return None
        if rule.source.reserve or (limit.tuning and not limit.sheds):
            return None
        key_of = rule.key.with_prefix(limit.prefix)
        if rule.overrides is not None:
            key_of = _without({limit.prefix + client for client in rule.overrides}, key_of)
        return limit, key_of, rule.fixed_cost

    def _choose(self) -> Choose | None:
        """The fast path for limits that differ between clients or times: it finds the limit, its key and its cost.

        It returns None for a client with several limits, with none, or with limits that a function has to return first.
        """
        if len(self.rules) != 1 or self.lists or self.adds_hits or self.waits:
            return None
        rule = self.rules[0]
        build_key, choosers, cost = rule.build_key, rule.choosers, rule.fixed_cost
        if cost is None or rule.shadow or rule.where or rule.rejects_missing or rule.capture:
            return None
        if rule.source.reserve or self.adapts:
            return None
        if rule.source.schedule is not None and len(choosers) == 2 and not rule.lookups:
            return _choose_by_time(rule, rule.source.schedule, cost)

        def choose(features: Features, clock: Clock) -> tuple[Limit, str, int] | None:
            key = build_key(features)
            if key is None:
                return None
            now = clock()
            for chooser in choosers:
                limits = chooser(features, key, now, None)
                if limits is not None:
                    if type(limits) is not tuple or len(limits) != 1:
                        return None
                    limit = limits[0]
                    return limit, limit.prefix + key, cost
            return None

        return choose if rule.varies else None

    @cached_property
    def without_costs(self) -> Plan:
        """The same rules for a peek, which needs no features of their costs."""
        return Plan(self.rules, self.lists, costs=False)

    def hits(
        self,
        features: Features,
        cost: int | None = None,
        request: Any = None,
        found: Found | None = None,
        clock: Clock = now_us,
    ) -> list[Hit] | LimitsCall | Verdict:
        """Build one hit for each limit that applies, or return the verdict of a list, or of a missing key.

        A plan that ``looks_up`` needs what is ``found``. It may need a call first, and then be asked again.
        """
        if self.lists is not None and (allowed := self.lists.allows(features)) is not None:
            ban = None if allowed or self.lists.bans is None else self.lists.bans.find(features)
            return (
                BannedVerdict((), False, None, None, ban.until, clock() / SECOND)
                if ban
                else decide_without_store(allowed)
            )
        hits: list[Hit] = []
        varying = self._choosers
        for rule in self.rules:
            values = features if rule.capture is None else rule.capture(features)
            if rule.where is not None and not rule.where(values):
                continue
            key = rule.build_key(values)
            if key is None:
                if rule.rejects_missing:
                    return decide_without_store(False, rule.limits or rule.placeholder, clock())
                continue
            limits = rule.limits
            if varying and (choosers := varying.get(rule)) is not None:
                own = rule.require_limits(values, key, found, choosers, clock)
                if isinstance(own, LimitsCall | Verdict):
                    return own
                limits = own
            rule_cost = rule.fixed_cost if cost is None else cost
            if rule_cost is None:
                hits += rule.hits(limits, key, values, request)
                continue
            for limit in limits:
                hits.append(make_hit((limit, limit.prefix + key, rule_cost)))  # twice as fast as extend
        return hits


def _gate(rule: CompiledRule, limit: Limit, key_of: Callable[[Features], str | None], cost: int) -> Gate:
    """Return ``Plan.gate``, which returns None for a client with other limits."""
    by_class, class_of = limit.by_class, rule.priorities.class_of

    def build(features: Features) -> Hit | None:
        key = key_of(features)
        return None if key is None else make_hit((by_class[class_of(features)], key, cost))

    return build


def _choose_by_time(rule: CompiledRule, schedule: Schedule, cost: int) -> Choose | None:
    """Return ``Plan.choose`` for a rule whose limits depend on the time alone, with one limit at each time."""
    if any(len(limits) != 1 for limits in (rule.limits, *rule.ranges.values())):
        return None
    pairs = {text: (limit, rule.key.with_prefix(limit.prefix)) for text, (limit,) in rule.ranges.items()}
    (limit,) = rule.limits
    own = limit, rule.key.with_prefix(limit.prefix)
    at, get = schedule.at, dict[str | None, Any](pairs.items()).get

    def choose(features: Features, clock: Clock) -> tuple[Limit, str, int] | None:
        limit, key_of = get(at(clock()), own)
        key = key_of(features)
        return None if key is None else (limit, key, cost)

    return choose


def _without(keys: set[str], key_of: Callable[[Features], str | None]) -> Callable[[Features], str | None]:
    """Return a function that returns None for these keys."""

    def build(features: Features) -> str | None:
        key = key_of(features)
        return None if key in keys else key

    return build
