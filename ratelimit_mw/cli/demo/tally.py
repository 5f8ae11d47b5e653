"""Counts over what the demo played: by kind of client, by limit, by client, over time. Pure; prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from .player import Outcome, Played

__all__ = ["SLICES", "Tally", "by_client", "by_kind", "by_policy", "served_again"]

SLICES: Final = 20


@dataclass
class Tally:
    """Requests of one sort. ``curve`` is the rejected ones over the time played, in twenty slices."""

    requests: int = 0
    rejected: int = 0
    clients: set[str] = field(default_factory=set)
    rejected_clients: set[str] = field(default_factory=set)
    policies: dict[str, int] = field(default_factory=dict)
    kind: str = ""
    curve: list[int] = field(default_factory=lambda: [0] * SLICES)

    @property
    def served(self) -> int:
        return self.requests - self.rejected

    def add(self, outcome: Outcome, rejected: bool, seconds: float) -> None:
        client = outcome.request.client
        self.kind = outcome.request.kind
        self.requests += 1
        self.clients.add(client)
        if rejected:
            self.rejected += 1
            self.rejected_clients.add(client)
            self.curve[min(SLICES - 1, int(SLICES * outcome.at / seconds))] += 1
            for policy in outcome.rejected:
                self.policies[policy] = self.policies.get(policy, 0) + 1


def by_kind(played: Played) -> dict[str, Tally]:
    return _tallied(played, lambda outcome: (outcome.request.kind,))


def by_policy(played: Played) -> dict[str, Tally]:
    """Under the name of each limit, the requests that it looked at."""
    return _tallied(played, lambda outcome: outcome.looked, lambda outcome, policy: policy in outcome.rejected)


def by_client(played: Played) -> dict[str, Tally]:
    """The clients that were rejected, those rejected most first."""
    tallies = _tallied(played, lambda outcome: (outcome.request.client,))
    rejected = [(client, tally) for client, tally in tallies.items() if tally.rejected]
    return dict(sorted(rejected, key=lambda item: (-item[1].rejected, item[0])))


def _tallied(
    played: Played,
    names: Callable[[Outcome], Iterable[str]],
    rejected: Callable[[Outcome, str], bool] = lambda outcome, _name: outcome.is_rejected,
) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for outcome in played.outcomes:
        for name in names(outcome):
            tallies.setdefault(name, Tally()).add(outcome, rejected(outcome, name), played.seconds)
    return tallies


def served_again(played: Played) -> dict[str, tuple[int, int]]:
    """For each kind of client: how many were served again after a rejection, and how many were rejected."""
    rejected: dict[str, str] = {}
    again: set[str] = set()
    for outcome in sorted(played.outcomes, key=lambda outcome: outcome.at):
        client = outcome.request.client
        if outcome.is_rejected:
            rejected[client] = outcome.request.kind
        elif client in rejected:
            again.add(client)
    back = Counter(rejected[client] for client in again)
    return {kind: (back[kind], number) for kind, number in Counter(rejected.values()).items()}
