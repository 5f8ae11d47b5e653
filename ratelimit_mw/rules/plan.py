"""A ``Plan``: the rules that apply to a request, and the features they need. One per combination of rules; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..clock import Clock, wall_us
from ..decision import Verdict, reject_missing, reject_unavailable
from ..keys.features import Features
from .access_lists import AccessLists
from .compiled import CompiledRule
from .lookup import LimitsCall, Lookups

Program = Callable[[Features, int | None, Any], Verdict | None]
"""Returns the verdict of a request; None where it has to wait, such as for limits from a function."""


class Plan:
    """The rules that apply to one request."""

    def __init__(self, rules: Sequence[CompiledRule], lists: AccessLists | None = None, costs: bool = True) -> None:
        self.rules = tuple(rules)
        self.lists = lists if lists is not None and (lists.needs or lists.is_exempt) else None
        self.is_empty = not (self.rules or self.lists)
        listed = self.lists.needs if self.lists else ()
        needs = (rule.needs if costs else rule.source.needs_without_cost for rule in rules)
        self.needs = tuple(dict.fromkeys((*listed, *(name for names in needs for name in names))))
        every = [limit for rule in rules for limit in rule.all_limits()]
        calls_functions = any(rule.lookup for rule in rules)
        self.looks_up = calls_functions or any(rule.ranges for rule in rules)
        """Whether limits depend on the time, or come from functions, which may return any."""
        self.has_slots = calls_functions or any(limit.quota.concurrent for limit in every)
        self.adapts = any(rule.source.adapts for rule in rules)
        """Whether limits follow the load of this process."""
        self.counts_outcomes = any(rule.source.statuses is not None for rule in rules)
        self.adds_hits = self.counts_outcomes or any(rule.ban is not None for rule in rules)
        """Whether the store decides more hits than those of the limits: before outcomes, and on bans."""
        self.follows_responses = any(rule.source.target_us for rule in rules)
        """Whether limits follow the responses."""
        self.needs_settlement = bool(self.has_slots or self.counts_outcomes or self.follows_responses)
        self.ends_with_body = self.has_slots or any(rule.source.is_marked for rule in rules)
        self.waits = any(rule.source.wait_us for rule in rules)
        """Whether a request may wait for a slot."""
        self.delays = any(limit.algorithm.delays for limit in every)
        """Whether a rule has a queue, so that an allowed request may have to wait."""
        self.may_delay = calls_functions or self.delays
        self.decides_at_once = not (self.adapts or self.waits)
        """Whether one call of the store decides a request."""
        self.program: Program | None = None
        """Decides the requests of the plan in memory, once it is bound: by features, cost and request."""
        self.plain = self.rules if self._is_plain() else ()
        """The rules of a plan that is no more: their keys, their limits and their costs decide."""

    def _is_plain(self) -> bool:
        if self.lists or self.adds_hits or self.waits:
            return False
        special = any(rule.add_captures or rule.takes or rule.shadow or rule.rejects_missing for rule in self.rules)
        return not special and all(rule.fixed_cost is not None for rule in self.rules)

    @cached_property
    def without_costs(self) -> Plan:
        """The same rules for a peek, which needs no features of their costs."""
        return Plan(self.rules, self.lists, costs=False)

    def hits(  # noqa: C901 - on the path of every request, so one function
        self,
        features: Features,
        cost: int | None = None,
        request: Any = None,
        lookups: Lookups | None = None,
        clock: Clock = wall_us,
    ) -> list[Any] | LimitsCall | Verdict:
        """Return limit, key and cost for each limit that applies, or the verdict of a list, or of a missing key.

        A plan that ``looks_up`` needs ``lookups``. It may need a call first, and then be asked again.
        """
        if self.lists is not None and (verdict := self.lists.decide(features, clock)) is not None:
            return verdict
        hits: list[Any] = []
        for rule in self.rules:
            values = features if rule.add_captures is None else rule.add_captures(features)
            if rule.takes is not None and not rule.takes(values):
                continue
            key = rule.build_key(values)
            if key is None:
                if rule.rejects_missing:
                    return reject_missing(rule.shown_limits, clock())
                continue
            limits = rule.limits_of_all
            if limits is None:
                chosen = rule.choose(values, key, lookups)
                if isinstance(chosen, LimitsCall):
                    return chosen
                if chosen is None and not rule.shadow:  # its function failed
                    return reject_unavailable(rule.shown_limits, clock())
                limits = chosen or ()
            used = rule.fixed_cost if cost is None else cost
            if used is None:
                hits += rule.hits(limits, key, values, request)
                continue
            for limit in limits:
                hits.append((limit, limit.prefix + key, used))  # a tuple is built in a fifth of the time of a ``Hit``
        return hits
