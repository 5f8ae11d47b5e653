"""``Event``: one concluded request as observers receive it. Knows neither HTTP nor observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Final, Literal

from ...decision import Decision, Verdict

Outcome = Literal["allowed", "shadow", "rejected", "banned", "denied", "unavailable"]
REJECTED: Final = frozenset({"rejected", "banned", "denied", "unavailable"})
"""The outcomes of requests that are rejected."""
_NO_FEATURES: Final[Mapping[str, str]] = MappingProxyType({})


_Consumed = Iterable[tuple[Decision, int]]


class Event:
    """One concluded request. An observer receives it after the response.

    An event cannot be changed. It has no keys of clients, so you can log it or send it to another system.

    Args:
        verdicts: The verdicts of the request.
        outcome: The outcome of the request.
        store: The kind of the store.
        features: The values of the features that ``event_features`` names.
        endpoint: The template of the route. Default: unknown.

    Example:
        >>> from ratelimit_mw import Limiter, Rule
        >>> limiter = Limiter([Rule(name="api", limits="1/minute")], observers=[print])
        >>> for _ in range(2):
        ...     _ = limiter.hit({"ip": "192.0.2.7"})
        Event(outcome='allowed', rules=('api',), store='memory', cost=1)
        Event(outcome='rejected', rules=('api',), store='memory', cost=0)
    """

    __slots__ = ("_costs", "_endpoint", "_features", "_outcome", "_store", "_verdicts")

    def __init__(
        self,
        verdicts: Sequence[Verdict],
        outcome: Outcome,
        store: str,
        features: Mapping[str, str] = _NO_FEATURES,
        endpoint: str | None = None,
    ) -> None:
        self._verdicts = tuple(verdicts)
        self._outcome = outcome
        self._store = store
        self._features = features
        self._endpoint = endpoint
        self._costs: Mapping[str, int] | None = None
        for verdict in verdicts:
            if verdict.open_receipt is not None:  # its cost may change later
                self._costs = _costs_of(verdicts, _consumed)
                break

    @property
    def outcome(self) -> Outcome:
        """The outcome of the request: "allowed", "shadow", "rejected", "banned", "denied" or "unavailable".

        "shadow": allowed, but a rule in shadow mode would have rejected it. "banned": rejected because the client is
        banned from a rule. "denied": rejected by a deny list. "unavailable": rejected because the store was
        unreachable.
        """
        return self._outcome

    @property
    def is_rejected(self) -> bool:
        """Whether the request was rejected: its outcome is not "allowed" and not "shadow"."""
        return self._outcome in REJECTED

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that applied, in order."""
        return tuple(self.outcomes)

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome of each rule that applied, by its name. A rule in shadow mode that rejects has "shadow"."""
        found: dict[str, Outcome] = {}
        for verdict in self._verdicts:
            for decision in verdict.decisions:
                rule = decision.hit[0].rule
                if decision.allowed:
                    found.setdefault(rule, "allowed")
                else:
                    found[rule] = outcome_of_rejection(decision)
        return found

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The names of the rules that rejected the request; if it was allowed, of those in shadow mode that would."""
        kinds = REJECTED if self.is_rejected else {"shadow"}
        return tuple(rule for rule, outcome in self.outcomes.items() if outcome in kinds)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of all limits that applied. Their ``key`` and ``client`` are empty."""
        return tuple(_without_key(decision) for verdict in self._verdicts for decision in verdict.decisions)

    @property
    def only_decision(self) -> Decision | None:
        """The decision of a request with one decision, with its key. Internal."""
        verdicts = self._verdicts
        return verdicts[0].decisions[0] if len(verdicts) == 1 and len(verdicts[0].decisions) == 1 else None

    @property
    def endpoint(self) -> str | None:
        """The template of the route, in the event that counts the request for it. Internal."""
        return self._endpoint

    @property
    def clients(self) -> Mapping[str, str]:
        """The client of each rule, by the name of the rule, as it is in the keys of the store. Internal."""
        decisions = (decision for verdict in self._verdicts for decision in verdict.decisions)
        return {decision.rule: decision.client for decision in decisions if decision.key}

    @property
    def store(self) -> str:
        """The kind of the store, such as "memory" or "redis". See ``local``."""
        return self._store

    @property
    def local(self) -> bool:
        """True when this process decided a limit on its own, because the store was unreachable."""
        for verdict in self._verdicts:
            for decision in verdict.decisions:
                if decision.hit[0].local or decision.unavailable:
                    return True
        return False

    @property
    def wait(self) -> float | None:
        """Seconds that the client has to wait: 0.0 for none.

        An allowed request waits before it continues (leaky-bucket queue). A rejected request waits before a retry can
        succeed; None when waiting does not help.
        """
        rejections = [verdict.retry_after for verdict in self._verdicts if not verdict.allowed]
        if None in rejections:
            return None
        return max([*rejections, *(verdict.delay for verdict in self._verdicts if not rejections)], default=0.0)  # type: ignore[type-var]

    @property
    def costs(self) -> Mapping[str, int]:
        """The settled cost that the request consumed from each rule, in units of its limits. Slots have the cost 0."""
        return _costs_of(self._verdicts, _hits_of) if self._costs is None else dict(self._costs)

    @property
    def cost(self) -> int:
        """The largest of ``costs``: 0 for a rejected request."""
        return max(self.costs.values(), default=0)

    @property
    def features(self) -> Mapping[str, str]:
        """The values of keys by feature, for the features that ``event_features`` names. Default: none.

        With a secret, personal features are digests, as in the store.
        """
        return dict(self._features)

    def __repr__(self) -> str:
        return f"Event(outcome={self.outcome!r}, rules={self.rules}, store={self.store!r}, cost={self.cost})"


def outcome_of(verdicts: Iterable[Verdict]) -> Outcome:
    """Return the outcome of a request with these verdicts."""
    is_rejected = is_shadow = is_unavailable = is_banned = False
    for verdict in verdicts:
        if not verdict.allowed:
            if verdict.denied:
                return "denied"
            is_rejected, is_unavailable = True, is_unavailable or verdict.unavailable
            is_banned = is_banned or verdict.banned
        elif not is_shadow:
            for decision in verdict.decisions:
                if not decision.allowed:
                    is_shadow = True
    if is_rejected:
        return "unavailable" if is_unavailable else "banned" if is_banned else "rejected"
    return "shadow" if is_shadow else "allowed"


def outcome_of_rejection(rejection: Decision) -> Outcome:
    """Return the outcome of a rule from a decision that rejected."""
    if rejection.shadow:
        return "shadow"
    return "unavailable" if rejection.unavailable else "banned" if rejection.banned else "rejected"


def _without_key(decision: Decision) -> Decision:
    copied = copy(decision)
    limit, _, cost = decision.hit
    copied.hit = limit, limit.prefix, cost
    return copied


def _costs_of(verdicts: Iterable[Verdict], consumed: Callable[[Verdict], _Consumed]) -> Mapping[str, int]:
    costs: dict[str, int] = {}
    for verdict in verdicts:
        of_limits: dict[str, int] = {}
        for decision, cost in consumed(verdict):
            if not decision.quota.concurrent:
                of_limits[decision.rule] = max(cost, of_limits.get(decision.rule, 0))
        for decision in verdict.decisions:
            costs[decision.rule] = costs.get(decision.rule, 0) + of_limits.pop(decision.rule, 0)
    return costs


def _consumed(verdict: Verdict) -> _Consumed:
    return _hits_of(verdict) if verdict.open_receipt is None else verdict.open_receipt.consumed()


def _hits_of(verdict: Verdict) -> _Consumed:
    """Return the decisions of hits that consumed, each with its cost, without later corrections."""
    return [(each, int(each.hit[2])) for each in verdict.decisions if verdict.allowed and each.allowed]
