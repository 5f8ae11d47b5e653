"""Bans of a rule: which requests they reject, and for how long."""

import random
from typing import Any
from uuid import uuid4

import pytest
import reference
from reference_bans import BanReference
from traces import SPECS

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms import register
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.quota import Quota
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock

START = 1_767_268_800
SECOND = 1_000_000
WHO = {"ip": "192.0.2.7"}


@register
class OwnWindow(FixedWindow):
    """An algorithm of the application, which no Lua decides."""

    name = "own-window"


def limiter_of(store: Store, clock: ManualClock, limits: str, ban: dict[str, Any]) -> Limiter:
    return Limiter([Rule(name=uuid4().hex, limits=limits, ban=ban)], store, clock)


@pytest.mark.parametrize("kind", SPECS)
def test_random_requests_are_decided_as_by_definition(kind: str) -> None:
    """Allowed, banned and the exact wait agree with a reference that keeps lists."""
    check_definition(MemoryStore(), kind)


@pytest.mark.parametrize("each_url", ["redis", "cluster"], indirect=True)
def test_a_ban_of_an_own_algorithm(each_store: Store) -> None:
    """Redis decides the ban, and the process the limit."""
    check_definition(each_store, OwnWindow.name)


def check_definition(store: Store, kind: str) -> None:
    for seed in range(3):
        chance, now = random.Random(seed), START * SECOND
        after, within, first = chance.randint(1, 5), chance.choice((7, 60, 200)), chance.choice((1, 30, 90))
        growth, longest = chance.choice((1, 2, 3)), first * chance.choice((1, 4, 10))
        ban = {"after": after, "within": within, "for": first, "growth": growth, "max": longest}
        quota = Quota.parse(chance.choice(("3/minute", "1/10s", "6/m")))
        spec = SPECS.get(kind, kind)
        rule = Rule(name=uuid4().hex, limits=str(quota), algorithm=spec, ban=ban)
        limiter = Limiter([rule], store, lambda: now)  # noqa: B023 - called within this turn
        limit = reference.build(SPECS.get(kind, "fixed-window"), quota.amount, quota.period_us, None, None)
        expected = BanReference(limit, after, within * SECOND, first * SECOND, growth, longest * SECOND)
        for step in range(80):
            cost = chance.choice((0, 1, 1, 1, 1, 2, quota.amount + 1))
            verdict, wanted = limiter.hit(WHO, cost), expected.hit(now, cost)
            waits = [decision.retry_us for decision in verdict.rejected_by]
            retry = None if None in waits else max(filter(None, waits), default=0)
            found = verdict.allowed, verdict.banned, retry
            assert found == wanted, (seed, step, ban, str(quota), now - START * SECOND, cost)
            wait = retry or 0
            pauses = (0, 0, SECOND, wait, max(0, wait - 1), chance.randrange(20 * SECOND), longest * SECOND)
            now += chance.choices(pauses, (6, 6, 3, 3, 2, 3, 0.5))[0]


def test_a_ban_leaves_a_longer_wait_as_it_is(each_store: Store) -> None:
    """A charge beyond the limit may need more microseconds than 64 bits hold."""
    ban = {"after": 3, "within": "10m", "for": "1h"}
    rule = Rule(name=uuid4().hex, limits="7/hour", algorithm="gcra", ban=ban)
    limiter = Limiter([rule], each_store, ManualClock(START))
    limiter.settle(limiter.hit(WHO), 10**12)
    waits = [limiter.hit(WHO).decisions[0].retry_us for _ in range(4)]
    assert waits == [-(-(10**12 - 6) * 3600 * SECOND // 7)] * 4


def test_the_tenth_rejection_starts_the_ban(each_store: Store) -> None:
    """It is rejected by its limit, and waits for the end of the ban. Later requests are rejected by the ban."""
    clock = ManualClock(START)
    limiter = limiter_of(each_store, clock, "5/minute", {"after": 10, "within": "10m", "for": "1h"})
    assert [limiter.hit(WHO).allowed for _ in range(5)] == [True] * 5
    for _ in range(9):
        verdict = limiter.hit(WHO)
        assert (verdict.allowed, verdict.banned, verdict.retry_after) == (False, False, 60)
    tenth = limiter.hit(WHO)
    assert (tenth.allowed, tenth.banned, tenth.retry_after) == (False, False, 3600)
    clock.advance(100)
    verdict = limiter.hit(WHO)
    assert (verdict.allowed, verdict.banned, verdict.retry_after, verdict.status) == (False, True, 3500, 429)
    assert [decision.reset_after for decision in verdict.decisions] == [3500]
    clock.advance(3499.999999)
    assert limiter.hit(WHO).banned
    clock.advance(0.000001)
    assert limiter.hit(WHO).allowed


def test_several_rules_are_decided_as_in_memory(each_store: Store) -> None:
    """Rules of other keys, in other slots of a cluster, and in shadow mode, with refunds."""
    for seed in range(3):
        chance, clock = random.Random(seed), ManualClock(START)
        rules = [
            Rule(
                name=f"{uuid4().hex}",
                key=key,
                limits=chance.choice(("2/minute", "3/10s; 5/minute")),
                algorithm=chance.choice(("sliding-window", "gcra", "token-bucket", "tiered-window")),
                ban=None
                if key == ["tenant"]
                else {"after": chance.randint(1, 3), "within": "1m", "for": "20s", "growth": chance.randint(1, 2)},
                mode=chance.choice(("enforce", "enforce", "shadow")),
            )
            for key in (["ip"], ["user"], ["ip", "user"], ["tenant"])
        ]
        expected, limiter = Limiter(rules, clock=clock), Limiter(rules, each_store, clock)
        for step in range(60):
            features = {
                "ip": f"192.0.2.{chance.randint(1, 2)}",
                "user": chance.choice(("ann", "{bob}")),
                "tenant": "acme",
            }
            cost = chance.choice((0, 1, 1, 1, 2))
            verdicts = [each.hit(features, cost) for each in (expected, limiter)]
            wanted, found = (
                [(d.rule, d.allowed, d.banned, d.remaining, d.retry_us) for d in verdict.decisions]
                for verdict in verdicts
            )
            assert found == wanted, (seed, step, features, cost)
            if chance.random() < 0.1:
                for each, verdict in zip((expected, limiter), verdicts, strict=True):
                    each.refund(verdict)
            clock.advance(chance.choice((0, 0, 0, 0.5, 2, verdicts[0].retry_after or 0)))
