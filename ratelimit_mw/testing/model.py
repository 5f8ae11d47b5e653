"""What a store has to answer: the pure functions over a dictionary, and random traces to ask both with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from ..algorithms.limit import Limit
from ..decision import Charge, Correction, Decision, Hit
from ..stores.base import decide_all
from .answers import answers, same
from .handles import Handle

__all__ = ["Model", "play"]


class Model:
    """A store that forgets nothing and is told the time: the law that others are held against."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._limits: dict[str, Limit] = {}

    def apply(self, hits: Sequence[Hit], now: int, consume: bool = True) -> list[Decision]:
        decisions, writes = decide_all(hits, [self._states.get(hit.key) for hit in hits], now)
        if consume:
            self._states.update((hit.key, state) for hit, state in writes)
        self._limits.update((hit.key, hit.limit) for hit in hits)
        return decisions

    def correct(self, changes: Sequence[Correction], now: int) -> None:
        for limit, key, cost, consumed in changes:
            state, algorithm = self._states.get(key), limit.algorithm
            if consumed is None:
                self._states[key] = algorithm.charge(state, now, cost)
            else:
                self._states[key] = algorithm.give_back(state, now, consumed, cost)
            self._limits[key] = limit

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._states.pop(key, None)

    def all_matter(self, now: int) -> bool:
        """Whether no state is as good as fresh by ``now``: no store may have dropped one by then."""
        states = [(self._limits[key], state) for key, state in self._states.items() if state is not None]
        return all(limit.decide(state, now, 0)[1].reset_us > 0 for limit, state in states)


def play(handle: Handle, limits: Sequence[Limit], start: int, steps: int, seed: int, back: bool) -> None:
    """The same random trace for the store and the model; raises at the first answer that differs.

    ``limits`` are hit together, each under a few keys. ``back`` lets the clock go back now and then, but not past
    the moment when a state was as good as fresh: whether a store still has such a one is its own affair.
    """
    chance = random.Random(seed)  # noqa: S311 - the same every time
    model, now, latest = Model(), start, start
    consumed: list[tuple[Hit, Charge]] = []
    for step in range(steps):
        hits = _hits(limits, chance)
        what = f"step {step} of seed {seed}, at {now}, {[(h.limit, h.key, h.cost) for h in hits]}"
        kind = chance.random()
        if kind < 0.08:
            keys = [hit.key for hit in hits]
            handle.forget(keys)
            model.forget(keys)
            consumed = [(hit, s) for hit, s in consumed if hit.key not in keys]
        elif kind < 0.25:
            changes = _changes(hits, consumed, chance)
            same(handle.correct(changes, now), [now] * len(changes), f"the times of corrections, {what}")
            model.correct(changes, now)
        consume = chance.random() > 0.15
        expected = model.apply(hits, now, consume)
        same(answers(handle.apply(hits, now, consume)), answers(expected), f"consume={consume}, {what}")
        if consume and all(d.allowed or hit.limit.shadow for hit, d in zip(hits, expected, strict=True)):
            consumed += [
                (h, Charge(d.at_us, h.cost, d.delay_us)) for h, d in zip(hits, expected, strict=True) if d.allowed
            ]
        latest = max(latest, now)
        if back and chance.random() < 0.15 and model.all_matter(latest):
            now -= chance.randrange(limits[0].algorithm.period)
        else:
            now += _pause(limits, expected, chance)


def _hits(limits: Sequence[Limit], chance: random.Random) -> list[Hit]:
    """One request: one of a few clients under some of the limits, with the same cost for all."""
    client = chance.choice(("ip=192.0.2.7", "ip=192.0.2.8"))
    chosen = [limit for limit in limits if len(limits) < 4 or chance.random() < 0.4] or [limits[0]]
    smallest = min(limit.limit for limit in chosen)
    cost = chance.choice((0, 1, 1, 1, 2, max(1, smallest // 2), smallest, smallest + 1))
    return [Hit(limit, limit.prefix + client, cost) for limit in chosen]


def _changes(hits: Sequence[Hit], consumed: list[tuple[Hit, Charge]], chance: random.Random) -> list[Correction]:
    """Corrections as a limiter makes them: what was consumed is given back in part or whole, or more is charged."""
    found = [Correction(hit.limit, hit.key, chance.randint(1, 3), None) for hit in hits if chance.random() < 0.3]
    for _ in range(min(len(consumed), chance.randint(0, 3))):
        hit, once = consumed.pop(chance.randrange(max(0, len(consumed) - 6), len(consumed)))
        if once.cost:
            found.append(Correction(hit.limit, hit.key, chance.randint(1, once.cost), once))
    return found


def _pause(limits: Sequence[Limit], decisions: Sequence[Decision], chance: random.Random) -> int:
    """How long until the next request: mostly short, often the very moment that matters."""
    algorithm, kind = chance.choice(limits).algorithm, chance.random()
    waits = [d.retry_us for d in decisions if d.retry_us]
    if kind < 0.35:
        return chance.randrange(max(1, 2 * algorithm.period // algorithm.amount))
    if kind < 0.6 and waits:
        return max(waits) - chance.choice((0, 0, 1))
    return chance.randrange(2 * algorithm.period) if kind < 0.7 else 0
