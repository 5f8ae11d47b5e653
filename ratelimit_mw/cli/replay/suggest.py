"""Suggests limits: the lowest amounts that reject at most a wanted share of the requests in a log.

First the limits are searched one by one: each pass over the log decides eight candidates for each search, as shadow
rules. Then the limits of a rule are tried together, because their rejections overlap.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ...algorithms.limit import Limit
from ...errors import ConfigError
from ...quota import Quota
from ...rules.rule import Rule
from ...settings import Settings
from .logs import RequestLog
from .report import RulesCounts
from .simulation import Simulation

_CANDIDATES: Final = 8
_AMOUNTS: Final = [*range(1, 100), *(digits * 10**zeros for zeros in range(1, 8) for digits in range(10, 100))]
"""The 729 amounts with at most two digits before their zeros: nine times nine times nine."""
_PASSES: Final = 3
_STEPS: Final = 4
"""Steps from the limits that reject the share in equal parts to those that reject the whole share each."""
_LEFT_OUT: Final = ("name", "mode", "consistency", "lease", "wait", "max_waiting", "ban")
"""Options that a shadow rule cannot have, and those that reject requests which are within the limits."""


class _Search:
    """The search for one limit. The amount at ``low`` rejects too many, and that at ``high`` does not."""

    def __init__(self, rule: Rule, quota: Quota, share: float) -> None:
        self._rule = rule
        self._quota = quota
        self._share = share
        self._low, self.high = -1, len(_AMOUNTS) - 1
        self.matched = 0

    def candidates(self) -> dict[int, Rule]:
        """Return up to eight candidates between both ends, by their place among the amounts."""
        gap = self.high - self._low
        places = {self._low + gap * i // (_CANDIDATES + 1) for i in range(1, _CANDIDATES + 1)} - {self._low}
        return {place: rule for place in sorted(places) if (rule := self._candidate(place)) is not None}

    def _candidate(self, place: int) -> Rule | None:
        options: dict[str, Any] = {name: value for name, value in self._rule.given.items() if name not in _LEFT_OUT}
        name = f"{id(self)}-{place}"
        try:
            return Rule(limits=str(_scaled(self._quota, _AMOUNTS[place])), name=name, mode="shadow", **options)
        except ConfigError:  # the algorithm cannot have this amount
            return None

    def learn(self, place: int, matched: int, rejected: int) -> None:
        """Narrow the search by one candidate. Those of one pass come in the order of their amounts."""
        self.matched = max(self.matched, matched)
        if rejected <= self._share * matched:
            self.high = min(self.high, place)
        elif place < self.high:
            self._low = place


def suggest(settings: Settings, share: float, log: RequestLog) -> list[Rule]:
    """Return the rules with suggested limits, and the rules without a suggestion as they are.

    Concurrency limits, and those of rules without a request in the log, stay as they are.

    Args:
        settings: The settings.
        share: The wanted share of the requests of a rule, from 0.0 to 1.0.
        log: The requests.
    """
    searches = [_RuleSearch(rule, share) for rule in settings.rules]
    with _without_log():
        for number in range(1, _PASSES + 1):
            _try(settings, [each for search in searches for each in search.every], log, f"searching, pass {number}")
        if any(len(search.every) > 1 for search in searches):
            _try_together(settings, searches, share, log)
    return [search.rule_at(search.step) for search in searches]


class _RuleSearch:
    """The searches for the limits of one rule: for equal parts of the share (0 with a ban), and for the whole share."""

    def __init__(self, rule: Rule, share: float) -> None:
        self._rule = rule
        quotas = [quota for quota in rule.quotas if not quota.concurrent]
        # A ban rejects more than the limits, unless they reject no request.
        part = 0.0 if rule.ban else share / max(len(quotas), 1)
        self._parts = {quota: _Search(rule, quota, part) for quota in quotas}
        self._whole = {quota: _Search(rule, quota, share) for quota in quotas} if part < share else self._parts
        self.every = {id(search): search for search in (*self._parts.values(), *self._whole.values())}.values()
        self.step = 0

    def rule_at(self, step: int) -> Rule:
        """Return the rule with the limits of a step: from 0, equal parts, to ``_STEPS``, the whole share for each."""
        if not self.every or not all(search.matched for search in self.every):
            return self._rule
        quotas = [quota if quota.concurrent else self._quota_at(quota, step) for quota in self._rule.quotas]
        return Rule(limits=list(map(str, quotas)), **self._rule.given)

    def _quota_at(self, quota: Quota, step: int) -> Quota:
        low, high = self._whole[quota].high, self._parts[quota].high
        return _scaled(quota, _AMOUNTS[high + (low - high) * step // _STEPS])


def _scaled(quota: Quota, amount: int) -> Quota:
    """Return a quota with another amount, and its burst in proportion."""
    burst = quota.burst and max(1, round(quota.burst * amount / quota.amount))
    return Quota.exact(amount, quota.period_us, burst)


def _try(settings: Settings, searches: list[_Search], log: RequestLog, action: str) -> None:
    """Decide the candidates of all searches in one pass, and narrow the searches."""
    candidates = [(search, *each) for search in searches for each in search.candidates().items()]
    simulation = Simulation(replace(settings, rules=tuple(rule for _, _, rule in candidates)))
    matched, rejected = Counter[Limit](), Counter[Limit]()
    for _, entry in log.requests(action):
        for decision in simulation.decide(entry).decisions:
            limit = decision.hit[0]
            matched[limit] += 1
            if not decision.allowed:
                rejected[limit] += 1
    for (search, place, _), rule in zip(candidates, simulation.rules, strict=True):
        (limit,) = rule.limits  # the limits of single clients are not counted
        search.learn(place, matched[limit], rejected[limit])


def _try_together(settings: Settings, searches: list[_RuleSearch], share: float, log: RequestLog) -> None:
    """Replay all rules at each step, and keep for each rule the strictest step that rejects at most the share."""
    rules = [[search.rule_at(step) for search in searches] for step in range(_STEPS + 1)]
    simulations = [Simulation(replace(settings, rules=tuple(each))) for each in rules]
    tried = [(simulation, RulesCounts(simulation.rules)) for simulation in simulations]
    for _, entry in log.requests("trying limits together"):
        for simulation, counts in tried:
            counts.add(simulation.decide(entry))
    for step, (_, counts) in enumerate(tried):
        for search, rule in zip(searches, counts.by_name.values(), strict=True):
            if rule.rejected <= share * rule.matched:
                search.step = step


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep warnings about candidates out of the log: the replay of the rules themselves logs them."""
    log = logging.getLogger("ratelimit_mw")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
