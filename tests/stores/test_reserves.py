"""A reserve keeps a part of one shared count for the important classes, on every store in one decision."""

import random
from typing import Any

import pytest

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms import names
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.slow
RESERVE = {"critical": "20%", "normal": "10%"}
CLASSES = ("critical", "normal", "background")


def rules(suffix: str) -> list[Rule]:
    """Return a rule for each algorithm and for slots, and one of several limits."""
    specs: list[Any] = [
        *names(),
        {"name": "token-bucket", "refill": "interval"},
        {"name": "leaky-bucket", "mode": "queue"},
    ]
    made = [(f"a{i}", "10/minute", spec) for i, spec in enumerate(specs)]
    made.append(("both", "10/minute; 30/hour", "sliding-window-counter"))
    options: dict[str, Any] = {"key": ["ip"], "reserve": RESERVE}
    slots = Rule(name=f"slots-{suffix}", limits="10 concurrent", match={"name": "slots"}, **options)
    return [
        Rule(name=f"{name}-{suffix}", limits=limits, algorithm=spec, match={"name": name}, **options)
        for name, limits, spec in made
    ] + [slots]


def test_each_class_leaves_what_is_reserved(each_store: Store) -> None:
    """Background requests take 7 of 10, others 1 more, and critical ones the rest. A refund is for critical ones."""
    clock, suffix = ManualClock(1_000_000.0), str(random.random())
    limiter = Limiter(rules(suffix), each_store, clock)
    for name in (rule.name.removesuffix(f"-{suffix}") for rule in rules(suffix) if rule.name):
        who = {"name": name, "ip": "192.0.2.7"}
        taken = [[limiter.hit({**who, "priority": each}) for _ in range(9)] for each in (*CLASSES[::-1],)]
        allowed = [sum(map(bool, verdicts)) for verdicts in taken]
        assert allowed == [7, 1, 2], name
        rejected = taken[0][-1].decisions[0]
        assert (rejected.limit, rejected.remaining) == (7, 0)
        limiter.refund(taken[2][1])
        assert [bool(limiter.peek({**who, "priority": each})) for each in CLASSES] == [True, False, False], name


def test_decisions_equal_those_of_the_memory_store(each_store: Store) -> None:
    """Random requests of all classes and costs have the same decisions, to the microsecond, on every store."""
    seed = random.randrange(1 << 30)
    chance, suffix, clock = random.Random(seed), str(seed), ManualClock(1_000_000.0)
    there, here = (Limiter(rules(suffix), store, clock) for store in (each_store, MemoryStore()))
    for i in range(150):
        clock.advance(chance.choice((0, 0.1, 7, 61)))
        name = chance.choice([f"a{chance.randrange(10)}", "both"])
        who = {"name": name, "ip": "192.0.2.7", "priority": chance.choice(CLASSES)}
        cost, consume = chance.choice((0, 1, 1, 2, 8, 11)), chance.random() < 0.8
        seen = []
        for limiter in (there, here):
            verdict = limiter.hit(who, cost) if consume else limiter.peek(who, cost)
            seen.append([(d.allowed, d.remaining, d.retry_us, d.reset_us, d.delay_us) for d in verdict.decisions])
            if verdict.allowed and consume and i % 5 == 0:
                limiter.settle(verdict, cost // 2)
        assert seen[0] == seen[1], (seed, i, name, cost)
