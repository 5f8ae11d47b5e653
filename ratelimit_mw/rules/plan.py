"""A ``Plan``: the rules that apply to a request, and the features they need. One per combination of rules; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..algorithms.limit import Limit
from ..clock import Clock
from ..decision import EarlyVerdict, Hit, make_hit
from ..keys.features import Features
from .access_lists import AccessLists
from .compiled import MAX_FOUND, CompiledRule
from .lookup import NO_LIMITS, Lookups
from .schedule import MINUTE


class Plan:
    """The rules that apply to one request. ``single`` is the fast path for one limit: the limit, its key, its cost."""

    def __init__(self, rules: Sequence[CompiledRule], lists: AccessLists | None = None) -> None:
        self.rules = tuple(rules)
        self.lists = lists if lists is not None and (lists.needs or lists.matched) else None
        self.is_empty = not (self.rules or self.lists)
        listed = self.lists.needs if self.lists else ()
        self.needs = tuple(dict.fromkeys((*listed, *(name for rule in rules for name in rule.needs))))
        self.limits = tuple(limit for rule in rules for limit in rule.limits)
        every = [limit for rule in rules for limit in rule.all_limits()]
        self._schedules = [rule.source.schedule for rule in rules if rule.ranges and rule.source.schedule]
        calls_functions = any(rule.looks_up for rule in rules)
        self.looks_up = calls_functions or bool(self._schedules)
        """Whether limits depend on the time, or come from functions, which may return any. See ``at``, ``look_up``."""
        self._latest: tuple[int, Plan | None] = 0, None
        self._found: dict[tuple[object, ...], Plan] = {}
        self.has_slots = calls_functions or any(limit.quota.concurrent for limit in every)
        self.counts_outcomes = any(rule.source.statuses is not None for rule in rules)
        self.adds_hits = self.counts_outcomes or any(rule.ban is not None for rule in rules)
        """Whether the store decides more hits than those of the limits: before outcomes, and on bans."""
        self.true_costs = tuple((rule.name, rule.source.true_cost) for rule in rules if rule.source.true_cost)
        """The rules whose true cost is in a header of the response."""
        self.needs_settlement = bool(self.has_slots or self.counts_outcomes or self.true_costs)
        self.ends_with_body = self.has_slots or any(rule.source.is_marked for rule in rules)
        self.waits = any(rule.source.wait_us for rule in rules)
        """Whether a request may wait for a slot."""
        self.delays = any(limit.algorithm.delays for limit in every)
        """Whether a rule has a queue, so that an allowed request may have to wait."""
        self.may_delay = calls_functions or self.delays
        self.has_overrides = any(rule.overrides is not None for rule in rules)
        self.single = self._single()

    def of_client(self, features: Features) -> Plan:
        """Return the plan of a client for whom ``single`` has no key, which may be due to its override."""
        (rule,) = self.rules
        limits = None if rule.overrides is None else rule.overrides.find(rule.build_key(features))
        own = rule.limits if limits is None else limits
        if (plan := self._found.get(own)) is None:
            plan = self._found[own] = Plan([rule.with_limits(own)], self.lists)
        return plan

    def _single(self) -> tuple[Limit, Callable[[Features], str | None], int] | None:
        if len(self.rules) != 1 or len(self.limits) != 1 or self.lists or self.adds_hits:
            return None
        if self.looks_up or self.waits:
            return None
        rule, limit = self.rules[0], self.limits[0]
        if rule.tables or rule.shadow or rule.where or rule.rejects_missing or rule.fixed_cost is None:
            return None
        key_of = rule.key.with_prefix(limit.prefix)
        if rule.overrides is not None:
            key_of = _without({limit.prefix + client for client in rule.overrides}, key_of)
        return limit, key_of, rule.fixed_cost

    @cached_property
    def without_costs(self) -> Plan:
        """The same rules for a peek, which needs no features of their costs."""
        return Plan([rule.without_cost() for rule in self.rules], self.lists)

    def at(self, now: int) -> Plan:
        """Return the plan with the limits that the schedules of its rules have at this time."""
        if not self._schedules:
            return self
        minute, plan = self._latest
        if plan is None or minute != now // MINUTE:
            key = tuple([schedule.at(now) for schedule in self._schedules])
            if (found := self._found.get(key)) is None:
                found = self._found[key] = Plan([rule.at(now) for rule in self.rules], self.lists)
            self._latest = now // MINUTE, found
            return found
        return plan

    def look_up(self, features: Features, clock: Clock) -> Lookups[Plan]:
        """Find the limits of a client that come from functions, and return the plan with them."""
        if self.lists is not None and self.lists.allows(features) is not None:
            return self
        limits = []
        for rule in self.rules:
            applies = rule.looks_up and (rule.where is None or rule.where(features))
            is_needed = applies and rule.key.build(features) is not None
            limits.append((yield from rule.look_up(features, clock)) if is_needed else None)
        key = tuple(limits)
        if (plan := self._found.get(key)) is None:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            pairs = zip(self.rules, limits, strict=True)
            rules = [rule.with_limits(found) if rule.looks_up else rule for rule, found in pairs]
            plan = self._found[key] = Plan(rules, self.lists)
        return plan

    def hits(self, features: Features, cost: int | None = None, request: Any = None) -> list[Hit]:
        """Build one hit for each limit that applies. ``EarlyVerdict`` when a list or a missing key decides."""
        if self.lists is not None and (allowed := self.lists.allows(features)) is not None:
            raise EarlyVerdict(allowed)
        hits: list[Hit] = []
        for rule in self.rules:
            if rule.where is not None and not rule.where(features):
                continue
            key = rule.build_key(features)
            if key is None:
                if rule.rejects_missing:
                    raise EarlyVerdict(False, rule.limits or rule.placeholder)
                continue
            has_own = rule.varies and (rule.tables or key in (rule.overrides or ()))
            limits = rule.limits_for(features, key=key) if has_own else rule.limits
            if not limits:
                if rule.shadow or rule.is_unlimited or limits is NO_LIMITS:
                    continue
                raise EarlyVerdict(False, rule.placeholder, unavailable=True)
            rule_cost = rule.fixed_cost if cost is None else cost
            if rule_cost is None:
                hits += rule.hits(limits, key, features, request)
                continue
            for limit in limits:
                hits.append(make_hit((limit, limit.prefix + key, rule_cost)))  # twice as fast as extend
        return hits


def _without(keys: set[str], key_of: Callable[[Features], str | None]) -> Callable[[Features], str | None]:
    """Return a function that returns None for these keys."""

    def build(features: Features) -> str | None:
        key = key_of(features)
        return None if key in keys else key

    return build
