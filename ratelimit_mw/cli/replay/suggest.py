"""Suggests limits: the lowest amounts that reject at most a wanted share of the requests in a log.

Each limit is searched alone: each pass over the log decides eight candidates for each search, as shadow rules. Several
limits of one rule divide its share, so that together they reject at most the share.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ...decision import Limit
from ...errors import ConfigError
from ...quota import Quota
from ...rules.rule import Rule
from ...settings import Settings
from .request_log import RequestLog
from .simulation import Simulation

_CANDIDATES: Final = 8
_AMOUNTS: Final = [*range(1, 100), *(digits * 10**zeros for zeros in range(1, 8) for digits in range(10, 100))]
"""The 729 amounts with at most two digits before their zeros: nine times nine times nine."""
_PASSES: Final = 3
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
        options: dict[str, Any] = {
            name: value for name, value in self._rule.set_options.items() if name not in _LEFT_OUT
        }
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
    searches = [_searches(rule, share) for rule in settings.rules]
    every = [search for own in searches for search in own.values()]
    with _without_log():
        for number in range(1, _PASSES + 1):
            _try(settings, every, log, f"searching, pass {number}")
    return [_suggested(rule, own) for rule, own in zip(settings.rules, searches, strict=True)]


def _searches(rule: Rule, share: float) -> dict[Quota, _Search]:
    quotas = [quota for quota in rule.quotas if not quota.concurrent]
    # A ban rejects more than the limits, unless they reject no request.
    part = 0.0 if rule.ban else share / max(len(quotas), 1)
    return {quota: _Search(rule, quota, part) for quota in quotas}


def _suggested(rule: Rule, searches: dict[Quota, _Search]) -> Rule:
    if not searches or not all(search.matched for search in searches.values()):
        return rule
    quotas = [_scaled(quota, _AMOUNTS[searches[quota].high]) if quota in searches else quota for quota in rule.quotas]
    return Rule(limits=list(map(str, quotas)), **rule.set_options)


def _scaled(quota: Quota, amount: int) -> Quota:
    """Return a quota with another amount, and its burst in proportion."""
    burst = quota.burst and max(1, round(quota.burst * amount / quota.amount))
    return Quota.exact(amount, quota.period_us, burst)


def _try(settings: Settings, searches: list[_Search], log: RequestLog, action: str) -> None:
    """Decide the candidates of all searches in one pass, and narrow the searches."""
    candidates = [(search, *each) for search in searches for each in search.candidates().items()]
    simulation = Simulation(settings.replaced(rules=tuple(rule for _, _, rule in candidates)))
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


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep warnings about candidates out of the log: the replay of the rules themselves logs them."""
    log = logging.getLogger("ratelimit_mw")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
