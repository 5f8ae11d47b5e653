"""``RequestOutcomes``: the data by which requests are counted. Metrics and traffic log have it. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

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
        is_delayed: Whether the request is allowed, and waits in a leaky-bucket queue.
    """

    outcome: Outcome
    of_rules: tuple[tuple[str, Outcome], ...]
    store: str
    is_delayed: bool = False

    @property
    def labels(self) -> list[Labels]:
        """The labels of each rule."""
        return [(rule, outcome, self.store) for rule, outcome in self.of_rules or (("", self.outcome),)]


def outcomes_of(verdicts: Sequence[Verdict], final: Verdict | None, store: str) -> RequestOutcomes:
    """Return the outcomes of a request with these verdicts.

    Args:
        verdicts: The verdicts.
        final: The verdict of the request, which may be a rejection of another limiter. Default: none.
        store: The kind of the store.
    """
    of_rules: dict[str, Outcome] = {}
    is_allowed, is_delayed = final is None or final.allowed, False
    for verdict in verdicts:
        is_allowed = is_allowed and verdict.allowed
        for decision in verdict.decisions:
            limit = decision.hit[0]
            if decision.allowed:
                of_rules.setdefault(limit.rule, "allowed")
                is_delayed = is_delayed or decision.delay_us > 0
            else:
                of_rules[limit.rule] = outcome_of_rejection(decision)
            if limit.local or decision.unavailable:
                store = LOCAL
    if is_allowed:
        outcome: Outcome = "shadow" if "shadow" in of_rules.values() else "allowed"
    else:
        outcome = _outcome_of(verdict for verdict in (*verdicts, final) if verdict is not None and not verdict.allowed)
    return RequestOutcomes(outcome, tuple(of_rules.items()), store, is_delayed and is_allowed)


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
