"""A ``Plan``: the rules that apply to a request, and the features they need. One per combination of rules; pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..algorithms.limit import Limit
from ..decision import EarlyVerdict, Hit, make_hit
from ..keys.features import INVALID, UNMATCHED, Features
from ..keys.key import KeyMaker
from ..keys.parts import part_of
from ..quota import Quota, checked_cost
from .access_lists import AccessLists
from .rule import Rule


class CompiledRule:
    """A rule with its limits and its key maker built."""

    def __init__(self, rule: Rule, name: str, make_key: Callable[..., KeyMaker] = KeyMaker) -> None:
        self.source = rule
        self.name = name
        self.shadow = rule.mode == "shadow"
        self.limits = self._limits(rule.quotas)
        self.tables = [
            (tuple(map(part_of, (by,) if by else rule.entries[0])), {v: self._limits(q) for v, q in table.items()})
            for by, table in rule.tables
        ]
        self.key = make_key(rule.entries, next(iter(rule.matches.paths), UNMATCHED))
        self.where = rule.matches.takes_features if rule.matches.needs else None
        self.rejects_missing = rule.when_missing == "reject" and not self.shadow
        self.fixed_cost = None if callable(rule.cost) else rule.cost

    def _limits(self, quotas: Iterable[Quota]) -> tuple[Limit, ...]:
        rule = self.source
        options = (rule.algorithm, self.shadow, rule.statuses, rule.on_store_error, rule.lease_percent)
        return tuple(Limit(self.name, i, quota, *options) for i, quota in enumerate(quotas))

    def limits_for(self, features: Features) -> tuple[Limit, ...]:
        """The limits of a client: from ``per_key``, else from ``per``, else the limits of the rule.

        An invalid feature may have any value, so it gets the smallest limits.
        """
        smallest: list[tuple[Limit, ...]] = []
        limits = self.limits
        for parts, table in self.tables:
            texts = (part.written(features) for part in parts)
            text = next((text for text in texts if text is not None), None)
            if text is INVALID:
                smallest += table.values()
            elif text is not None and (found := table.get(text)):
                limits = found
                break
        return min((limits, *smallest), key=_rate) if smallest else limits

    def all_limits(self) -> list[Limit]:
        return [*self.limits, *(limit for _, table in self.tables for limits in table.values() for limit in limits)]

    @property
    def never_fitting(self) -> list[Limit]:
        """The limits that reject every request, because its cost is above them."""
        return [limit for limit in self.all_limits() if (self.fixed_cost or 0) > limit.limit]


def _rate(limits: Iterable[Limit]) -> float:
    """The most that the limits allow per microsecond in the long run."""
    return min(limit.quota.amount / (limit.quota.period_us or 1) for limit in limits)


class Plan:
    """The rules that apply to one request. ``single`` is the fast path for one limit: the limit, its key, its cost."""

    def __init__(self, rules: Sequence[CompiledRule], lists: AccessLists | None = None) -> None:
        self.rules = tuple(rules)
        self.lists = lists if lists is not None and lists.needs else None
        self.is_empty = not (self.rules or self.lists)
        listed = self.lists.needs if self.lists else ()
        self.needs = tuple(dict.fromkeys((*listed, *(name for rule in rules for name in rule.source.needs))))
        self.limits = tuple(limit for rule in rules for limit in rule.limits)
        every = [limit for rule in rules for limit in rule.all_limits()]
        self.has_slots = any(limit.quota.concurrent for limit in every)
        self.counts_outcomes = any(rule.source.statuses is not None for rule in rules)
        self.needs_settlement = self.has_slots or self.counts_outcomes
        self.ends_with_body = self.has_slots or any(rule.source.is_marked for rule in rules)
        self.may_delay = any(limit.algorithm.delays for limit in every)
        self.single = self._single()

    def _single(self) -> tuple[Limit, Callable[[Features], str | None], int] | None:
        if len(self.rules) != 1 or len(self.limits) != 1 or self.lists or self.counts_outcomes:
            return None
        rule, limit = self.rules[0], self.limits[0]
        if rule.tables or rule.shadow or rule.where or rule.rejects_missing or rule.fixed_cost is None:
            return None
        return limit, rule.key.with_prefix(limit.prefix), rule.fixed_cost

    def hits(self, features: Features, cost: int | None = None, request: Any = None) -> list[Hit]:
        """Build one hit for each limit that applies. ``EarlyVerdict`` when a list or a missing key decides."""
        if self.lists is not None and (allowed := self.lists.allows(features)) is not None:
            raise EarlyVerdict(allowed)
        hits: list[Hit] = []
        for rule in self.rules:
            if rule.where is not None and not rule.where(features):
                continue
            key = rule.key.build(features)
            if key is None:
                if rule.rejects_missing:
                    raise EarlyVerdict(False, rule.limits)
                continue
            rule_cost = rule.fixed_cost if cost is None else cost
            if rule_cost is None:
                rule_cost = checked_cost(rule.source.cost(features if request is None else request))  # type: ignore[operator]
            for limit in rule.limits_for(features) if rule.tables else rule.limits:
                hits.append(make_hit((limit, limit.prefix + key, rule_cost)))  # noqa: PERF401 - twice as fast as extend
        return hits
