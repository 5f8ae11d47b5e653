"""The outcomes of one concluded request, by which it is counted, and its ``Event``, which observers receive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final, Literal, NamedTuple

import msgspec

from ...decision import BANNED, SHED, UNAVAILABLE, Decision, Verdict

Outcome = Literal["allowed", "shadow", "rejected", "banned", "denied", "unavailable", "shed"]
REJECTED: Final = frozenset({"rejected", "banned", "denied", "unavailable", "shed"})
"""The outcomes of requests that are rejected."""
_BY_REASON: Final[dict[str, Outcome]] = {UNAVAILABLE: "unavailable", SHED: "shed", BANNED: "banned"}
LOCAL: Final = "local"
"""The kind of store of a request that this process decided on its own."""
Labels = tuple[str, str, str]
"""The name of a rule, its outcome, and the kind of store. Without any rule, the name is empty."""


class RequestOutcomes(NamedTuple):
    """The outcomes of a request, by which it is counted. Most requests share theirs. No value of a client is in them.

    Attributes:
        outcome: The outcome of the request.
        of_rules: The name of each rule that applied, with its outcome.
        store: The kind of store, or ``LOCAL``.
    """

    outcome: Outcome
    of_rules: tuple[tuple[str, Outcome], ...]
    store: str

    @property
    def labels(self) -> list[Labels]:
        """The labels of each rule."""
        return [(rule, outcome, self.store) for rule, outcome in self.of_rules or (("", self.outcome),)]


class Event(msgspec.Struct, frozen=True, eq=False):
    """One concluded request. An observer receives it after the response.

    An event cannot be changed. It has no keys of clients, so you can log it or send it to another system.

    Args:
        outcome: The outcome of the request: "allowed", "shadow", "rejected", "banned", "denied", "unavailable" or
            "shed". "shadow": allowed, but a rule in shadow mode would have rejected it. "banned": rejected because the
            client is banned from a rule. "denied": rejected by a deny list. "unavailable": rejected because the store
            was unreachable. "shed": rejected by an adaptive limit.
        store: The kind of the store, such as "memory" or "redis". See ``local``.
        endpoint: The template of the route, such as "/items/{id}". None where it is not known, and for ``hit``.
        method: The HTTP method; "_OTHER" for one that HTTP does not define. None for ``hit``.
        counted: The outcomes of the rules. Internal, as all that follow: an observer asks for few properties of them.
        _verdicts: The verdicts.
        _features: The values of the features that ``event_features`` names.
        _settled: The costs after all corrections; None where there were none.

    Example:
        >>> from ratelimit_mw import Limiter, Rule
        >>> limiter = Limiter([Rule(name="api", limits="1/minute")], observers=[print])
        >>> for _ in range(2):
        ...     _ = limiter.hit({"ip": "192.0.2.7"})
        Event(outcome='allowed', rules=('api',), endpoint=None, method=None, store='memory', cost=1)
        Event(outcome='rejected', rules=('api',), endpoint=None, method=None, store='memory', cost=0)
    """

    outcome: Outcome
    store: str
    endpoint: str | None
    method: str | None
    counted: RequestOutcomes
    _verdicts: Sequence[Verdict]
    _features: Mapping[str, str]
    _settled: Mapping[str, int] | None

    @property
    def is_rejected(self) -> bool:
        """Whether the request was rejected: its outcome is not "allowed" and not "shadow"."""
        return self.outcome in REJECTED

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that applied, in order."""
        return tuple(self.outcomes)

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcome of each rule that applied, by its name. A rule in shadow mode that rejects has "shadow"."""
        return dict(self.counted.of_rules)

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The names of the rules that rejected the request; if it was allowed, of those in shadow mode that would."""
        kinds = REJECTED if self.is_rejected else {"shadow"}
        return tuple(rule for rule, outcome in self.counted.of_rules if outcome in kinds)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of all limits that applied. Their ``key`` and ``client`` are empty."""
        return tuple(_without_key(decision) for verdict in self._verdicts for decision in verdict.decisions)

    @property
    def local(self) -> bool:
        """True when this process decided a limit on its own, because the store was unreachable."""
        return self.counted.store != self.store

    @property
    def wait(self) -> float | None:
        """Seconds that the client has to wait: 0.0 for none.

        An allowed request waits before it continues (leaky-bucket queue). A rejected request waits before a retry can
        succeed; None when waiting does not help.
        """
        rejections = [verdict.retry_after for verdict in self._verdicts if not verdict.allowed]
        if None in rejections:
            return None
        return max(rejections or [verdict.delay for verdict in self._verdicts], default=0.0)  # type: ignore[type-var]

    @property
    def costs(self) -> Mapping[str, int]:
        """The settled cost that the request consumed from each rule, in units of its limits. Slots have the cost 0."""
        return _costs(self._verdicts, are_settled=False) if self._settled is None else dict(self._settled)

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
        names = ("outcome", "rules", "endpoint", "method", "store", "cost")
        return f"Event({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def clients_in(event: Event) -> dict[str, str]:
    """Return the client of each rule as the store has it, for the traffic log. Observers see no keys of clients."""
    decisions = (decision for verdict in event._verdicts for decision in verdict.decisions)
    return {each.rule: each.client for each in decisions if each.key}


def settled_costs(verdicts: Sequence[Verdict]) -> Mapping[str, int] | None:
    """Return the costs that verdicts have consumed after all corrections; None without any, as nearly always."""
    for verdict in verdicts:
        if verdict.open_receipt is not None:  # its cost may change later
            return _costs(verdicts, are_settled=True)
    return None


def _costs(verdicts: Iterable[Verdict], are_settled: bool) -> dict[str, int]:
    """Return the cost that verdicts consumed from each rule, perhaps after corrections."""
    costs: dict[str, int] = {}
    for verdict in verdicts:
        receipt = verdict.open_receipt if are_settled else None
        hits = [(each, int(each.hit[2])) for each in verdict.decisions if verdict.allowed and each.allowed]
        of_limits: dict[str, int] = {}
        for decision, cost in hits if receipt is None else receipt.consumed():
            if not decision.quota.concurrent:
                of_limits[decision.rule] = max(cost, of_limits.get(decision.rule, 0))
        for rule in verdict.rules:
            costs[rule] = costs.get(rule, 0) + of_limits.get(rule, 0)
    return costs


def _without_key(decision: Decision) -> Decision:
    copied = copy(decision)
    limit, _, cost = decision.hit
    copied.hit = limit, limit.prefix, cost
    return copied


def outcomes_of(verdicts: Sequence[Verdict], final: Verdict | None, store: str) -> RequestOutcomes:
    """Return the outcomes of a request with these verdicts.

    ``final`` is the verdict of the request, which may be a rejection of another limiter.
    """
    of_rules: dict[str, Outcome] = {}
    is_allowed = final is None or final.allowed
    for verdict in verdicts:
        is_allowed = is_allowed and verdict.allowed
        for decision in verdict.decisions:
            limit = decision.hit[0]
            if decision.allowed:
                of_rules.setdefault(limit.rule, "allowed")
            else:
                of_rules[limit.rule] = outcome_of_rejection(decision)
            if limit.local or decision.unavailable:
                store = LOCAL
    if is_allowed:
        outcome: Outcome = "shadow" if "shadow" in of_rules.values() else "allowed"
    else:
        outcome = _outcome_of(verdict for verdict in (*verdicts, final) if verdict is not None and not verdict.allowed)
    return RequestOutcomes(outcome, tuple(of_rules.items()), store)


def outcome_of_rejection(rejection: Decision) -> Outcome:
    """Return the outcome of a rule from a decision that rejected."""
    if rejection.shadow:
        return "shadow"
    return _BY_REASON.get(rejection.why, "rejected")


def _outcome_of(rejections: Iterable[Verdict]) -> Outcome:
    kinds = set[Outcome]()
    for each in rejections:
        kinds |= {"denied"} if each.denied else {outcome_of_rejection(decision) for decision in each.rejected_by}
        kinds |= {"banned"} if each.banned else set()
    order: tuple[Outcome, ...] = ("denied", "unavailable", "shed", "banned", "rejected")
    return next(outcome for outcome in order if outcome in kinds)
