"""The expected decisions of a store: the pure algorithms over a dictionary, random traces, and the comparison of both.

A difference raises `AssertionError`; no test library is needed.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..algorithms import Algorithm
from ..decision import Correction, Decision, Hit, Limit, decide_all
from .store_suite import StoreHandle

_STEPS: Final = 40


def values_of(decision: Decision) -> dict[str, int | None]:
    """Return the numbers of a decision, with times in microseconds."""
    names = ("allowed", "remaining", "retry_us", "reset_us", "at_us", "delay_us")
    return {name: getattr(decision, name) for name in names}


def check_equal(actual: Any, expected: Any, subject: str) -> None:
    """Raise unless both values are equal. An ``assert`` would show no values without pytest, and nothing under -O."""
    if actual != expected:
        raise AssertionError(f"{subject}:\n  got      {actual!r}\n  expected {expected!r}")


class ReferenceStore:
    """A store that never expires a key and has no clock. Other stores must return its decisions."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Limit, Any]] = {}

    def _state(self, key: str) -> Any:
        return self._states[key][1] if key in self._states else None

    def apply(self, hits: Sequence[Hit], now: int, consume: bool = True) -> list[Decision]:
        decisions, writes = decide_all(hits, [self._state(hit.key) for hit in hits], now)
        if consume:
            self._states.update((hit.key, (hit.limit, state)) for hit, state in writes)
        return decisions

    def correct(self, changes: Sequence[Correction], now: int) -> None:
        for change in changes:
            self._states[change.key] = change.limit, change.apply_to(self._state(change.key), now)

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._states.pop(key, None)

    def has_no_expired_state(self, now: int) -> bool:
        """Return whether every state still matters at ``now``, so that no store may have dropped one by then."""
        states = [(limit, state) for limit, state in self._states.values() if state is not None]
        return all(limit.decide(state, now, 0)[1].reset_us > 0 for limit, state in states)


def compare_with_reference(
    suite: Any,
    handle: StoreHandle,
    limits: Sequence[Limit],
    start: int,
    seed: int,
    clients: Sequence[str] = ("ip=192.0.2.7", "ip=192.0.2.8"),
) -> None:
    """Send the same random trace to the store and the reference. The ``StoreCompliance`` checks the decisions of both.

    The trace hits the ``limits`` together, under the keys of the ``clients``. Where all ``keeps_time``, the clock
    sometimes goes back, at most by a period, and only while no state has expired: a store may drop an expired state at
    any time.
    """
    back = all(suite.keeps_time(limit.algorithm.name) for limit in limits)
    chance = random.Random(seed)  # noqa: S311 - the same trace in every run
    reference, now, latest = ReferenceStore(), start, start
    refunds: list[Correction] = []
    for step in range(_STEPS):
        hits = _random_hits(limits, clients, chance)
        place = f"step {step} of seed {seed}, at {now}, {[(h.limit, h.key, h.cost) for h in hits]}"
        _change_both(handle, reference, hits, refunds, now, chance)
        consume = chance.random() > 0.15
        actual, expected = handle.apply(hits, now, consume), reference.apply(hits, now, consume)
        suite.check_decisions(actual, expected, f"consume={consume}, {place}")
        if consume and all(each.allowed or each.shadow for each in expected):
            refunds += [Correction.refund(each) for each in expected if each.allowed]
        latest = max(latest, now)
        if back and chance.random() < 0.15 and reference.has_no_expired_state(latest):
            period = limits[0].algorithm.period
            now = max(now - chance.randrange(period), latest - period)
        else:
            now += random_pause(chance.choice(limits).algorithm, expected, chance, back=False)


def _change_both(
    handle: StoreHandle,
    reference: ReferenceStore,
    hits: Sequence[Hit],
    refunds: list[Correction],
    now: int,
    chance: random.Random,
) -> None:
    """Sometimes delete the keys of these hits, or correct what they or earlier hits have consumed."""
    kind = chance.random()
    if kind < 0.08:
        keys = [hit.key for hit in hits]
        handle.forget([*keys, "a key that does not exist"])
        reference.forget(keys)
        refunds[:] = [each for each in refunds if each.key not in keys]
    elif kind < 0.25:
        changes = _random_corrections(hits, refunds, chance)
        check_equal(handle.correct(changes, now), [now] * len(changes), f"times of {changes}")
        reference.correct(changes, now)


def _random_hits(limits: Sequence[Limit], clients: Sequence[str], chance: random.Random) -> list[Hit]:
    """Build one request: one of the clients under some of the limits, with the same cost for all."""
    client = chance.choice(clients)
    chosen = [limit for limit in limits if len(limits) < 4 or chance.random() < 0.4] or [limits[0]]
    smallest = min(limit.limit for limit in chosen)
    cost = chance.choice((0, 1, 1, 1, 2, max(1, smallest // 2), smallest, smallest + 1))
    return [Hit(limit, limit.prefix + client, cost) for limit in chosen]


def _random_corrections(hits: Sequence[Hit], refunds: list[Correction], chance: random.Random) -> list[Correction]:
    """Build corrections as a limiter does: extra charges, and full or partial refunds of earlier hits."""
    changes = [Correction(hit.limit, hit.key, chance.randint(1, 3), None) for hit in hits if chance.random() < 0.3]
    for _ in range(min(len(refunds), chance.randint(0, 3))):
        refund = refunds.pop(chance.randrange(max(0, len(refunds) - 6), len(refunds)))
        if refund.cost:
            changes.append(refund._replace(cost=chance.randint(1, refund.cost)))
    return changes


def random_pause(algorithm: Algorithm, decisions: Sequence[Decision], chance: random.Random, back: bool) -> int:
    """Choose the time until the next step: mostly short, often the exact end of a wait, with ``back`` even negative."""
    period, kind = algorithm.period, chance.random()
    if kind < 0.3:
        return chance.randrange(max(1, 2 * period // algorithm.amount))
    if kind < 0.5 and (retry := max(each.retry_us or 0 for each in decisions)):
        return retry - chance.choice((0, 0, 1))
    if kind < 0.6 and (reset := max(each.reset_us for each in decisions)):
        return reset - chance.choice((0, 1))
    if kind < 0.7 and back:
        return -chance.randrange(period)
    return chance.randrange(2 * period) if kind < 0.8 else 0
