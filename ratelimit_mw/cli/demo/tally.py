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
    """Requests of one sort. ``curve`` is the refused ones over the time played, in twenty slices."""

    requests: int = 0
    refused: int = 0
    clients: set[str] = field(default_factory=set)
    refused_clients: set[str] = field(default_factory=set)
    policies: dict[str, int] = field(default_factory=dict)
    kind: str = ""
    curve: list[int] = field(default_factory=lambda: [0] * SLICES)

    @property
    def served(self) -> int:
        return self.requests - self.refused

    def add(self, outcome: Outcome, refused: bool, seconds: float) -> None:
        client = outcome.request.client
        self.kind = outcome.request.kind
        self.requests += 1
        self.clients.add(client)
        if refused:
            self.refused += 1
            self.refused_clients.add(client)
            self.curve[min(SLICES - 1, int(SLICES * outcome.at / seconds))] += 1
            for policy in outcome.refused:
                self.policies[policy] = self.policies.get(policy, 0) + 1


def by_kind(played: Played) -> dict[str, Tally]:
    return _tallied(played, lambda outcome: (outcome.request.kind,))


def by_policy(played: Played) -> dict[str, Tally]:
    """Under the name of each limit, the requests that it looked at."""
    return _tallied(played, lambda outcome: outcome.looked, lambda outcome, policy: policy in outcome.refused)


def by_client(played: Played) -> dict[str, Tally]:
    """The clients that were refused, those refused most first."""
    tallies = _tallied(played, lambda outcome: (outcome.request.client,))
    refused = [(client, tally) for client, tally in tallies.items() if tally.refused]
    return dict(sorted(refused, key=lambda item: (-item[1].refused, item[0])))


def _tallied(
    played: Played,
    names: Callable[[Outcome], Iterable[str]],
    refused: Callable[[Outcome, str], bool] = lambda outcome, _name: outcome.is_refused,
) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for outcome in played.outcomes:
        for name in names(outcome):
            tallies.setdefault(name, Tally()).add(outcome, refused(outcome, name), played.seconds)
    return tallies


def served_again(played: Played) -> dict[str, tuple[int, int]]:
    """For each kind of client: how many were served again after a refusal, and how many were refused at some time."""
    refused: dict[str, str] = {}
    again: set[str] = set()
    for outcome in sorted(played.outcomes, key=lambda outcome: outcome.at):
        client = outcome.request.client
        if outcome.is_refused:
            refused[client] = outcome.request.kind
        elif client in refused:
            again.add(client)
    back = Counter(refused[client] for client in again)
    return {kind: (back[kind], number) for kind, number in Counter(refused.values()).items()}
