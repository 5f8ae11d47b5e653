"""The Lua of every algorithm against its Python: the same answers and the same states, on every step."""

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis
from redis_twins import Trace, differences
from servers import HOST, Server
from traces import SPECS

from ratelimit_mw import Quota
from ratelimit_mw.algorithms import build_limit
from ratelimit_mw.algorithms.window_log import Series
from ratelimit_mw.decision import BanLimit, BanTerms, Charge, Limit, SlotCost
from ratelimit_mw.stores.redis import script
from ratelimit_mw.stores.redis.script import build_script

AMOUNTS = (1, 2, 3, 7, 10, 97, 997, 9_999)
LARGE = (200_000, 10**9 + 7, 10**12 - 1, 10**12)
PERIODS = (1, 2, 7, 997, 3_000, 1_000_000, 60_000_000, 86_400_000_000, 31_622_400_000_000)
NOW = 1_767_268_820_500_000
TRACES, STEPS = 100, 100


@pytest.fixture(scope="module")
def server(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(host=HOST, port=redis_server.port) as client:
        yield client


def test_all_processes_have_the_same_script() -> None:
    """A set has another order in each, and the server would keep a script for each."""
    kinds = [*dict.fromkeys(script._ALGORITHMS.values())]
    assert build_script.__wrapped__(kinds) == build_script.__wrapped__(kinds[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
def test_random_traces_are_the_same_in_lua(server: redis.Redis, kind: str) -> None:
    """10,000 random steps of each algorithm, even with the largest numbers, a clock going back, refunds and charges."""
    check_traces(server, random.Random(kind), partial(random_trace, kind))


def test_random_leases_and_bans_are_the_same_in_lua(server: redis.Redis) -> None:
    """10,000 random steps each, at each edge: slots that are named, renewed, returned, old; rejections taken back."""
    check_traces(server, random.Random("leases"), random_leases)
    check_traces(server, random.Random("bans"), random_bans)


def check_traces(server: redis.Redis, chance: random.Random, make: Callable[[random.Random], Trace]) -> None:
    traces = [make(chance) for _ in range(TRACES)]
    for i in range(0, TRACES, 10):
        assert differences(server, traces[i : i + 10]) == []


def random_trace(kind: str, chance: random.Random) -> Trace:
    limit = build_limit("search", 0, random_quota(kind, chance), SPECS[kind])
    now = chance.choice((0, NOW, NOW - NOW % limit.algorithm.period, NOW + chance.randrange(10**12)))
    return random_steps(limit, chance, now, lambda: random_pause(limit, chance), lambda: random_cost(limit, chance))


def random_leases(chance: random.Random) -> Trace:
    quota = Quota.exact(chance.choice((1, 2, 10, 10_000)), 0, concurrent=True)
    pauses = (0, 0, 1, 1000, 5_000_000, 30_000_000, 59_999_999, 60_000_000, -2, -40_000_000)
    return random_steps(
        build_limit("search", 0, quota, "fixed-window"),
        chance,
        NOW,
        lambda: chance.choice(pauses),
        lambda: chance.choice((0, 1, 1, 1, 2, 5, *map(named_slot, (1, 2, 3)))),
        refunds=0.3,
        renewals=0.2,
    )


def named_slot(slot: int) -> SlotCost:
    cost = SlotCost(1 + slot % 2)
    cost.slot = slot
    return cost


def random_bans(chance: random.Random) -> Trace:
    first, within = chance.choice((1, 30)), chance.choice((1, 7, 60))
    terms = BanTerms(chance.randrange(4), within, first, chance.choice((1, 2, 3)), first * chance.choice((1, 4, 10)))
    pauses = (0, 0, 0, 1, within, first, terms.longest, -2)
    limit = BanLimit(terms, build_limit("search", 0, Quota.exact(1, 1), "fixed-window"))
    return random_steps(limit, chance, NOW, lambda: chance.choice(pauses), lambda: 1, charges=0.4)


def random_steps(
    limit: Limit,
    chance: random.Random,
    now: int,
    pause: Callable[[], int],
    cost_of_step: Callable[[], int],
    refunds: float = 0.12,
    renewals: float = 0.0,
    charges: float = 0.03,
) -> Trace:
    trace, consumed = Trace(limit), list[Charge]()
    for _ in range(STEPS):
        now = max(0, now + pause())
        cost, kind = cost_of_step(), chance.random()
        if kind < refunds and consumed:
            held = consumed.pop(chance.randrange(max(0, len(consumed) - 8), len(consumed)))
            back = chance.choice((held.cost, chance.randint(1, held.cost)))
            trace.refund(now, held, back)
            if back < held.cost:
                consumed.append(held._replace(cost=held.cost - back))
        elif kind < refunds + renewals and consumed:
            trace.refund(now, chance.choice(consumed), 0)
        elif kind < refunds + renewals + charges:
            trace.charge(now, int(max(1, cost)))
        else:
            decision = trace.decide(now, cost)
            if decision.allowed and cost:
                consumed.append(Charge(getattr(cost, "slot", decision.at_us), int(cost), decision.delay_us))
    return trace


def random_quota(kind: str, chance: random.Random) -> Quota:
    is_log = kind.startswith("sliding-window-log")
    amount = chance.choice(AMOUNTS if is_log else AMOUNTS + LARGE)
    periods = [period for period in PERIODS if kind != "tiered-window" or period % 100 == 0]
    bursts = (None, *AMOUNTS, *LARGE) if kind.startswith(("token", "leaky", "gcra")) else (None,)
    return Quota.exact(amount, chance.choice(periods), chance.choice(bursts))


def random_cost(limit: Limit, chance: random.Random) -> int:
    most = limit.limit
    some = (0, 1, 1, 1, 1, 2, 3, most // 2, most - 1, most, most + 1, chance.randint(0, most))
    return min(max(0, chance.choice(some)), 10**12)


def random_pause(limit: Limit, chance: random.Random) -> int:
    """Mostly none or short, often a moment that matters, now and then back."""
    period = limit.algorithm.period
    share = period // limit.algorithm.amount
    some = (0, 0, 0, 1, share, share + 1, period // 3, period - 1, period, period + 1, 2 * period, 5 * period)
    if chance.random() < 0.1:
        return -chance.choice(some)
    return chance.choice(some) if chance.random() < 0.7 else chance.randrange(2 * share + 2)


def test_running_totals_start_again_before_they_grow_inexact(server: redis.Redis) -> None:
    """A log that has run for ages, whose totals are about to pass 2**52, continues as if nothing were."""
    limit = build_limit("old", 0, Quota.exact(10, 1_000_000), "sliding-window-log")
    start = Series.from_entries([(NOW, 3), (NOW + 5, 4)])
    trace = Trace(limit, start, total=2**52 - 5)
    first = trace.decide(NOW + 10, 2)
    trace.decide(NOW + 11, 2)
    trace.refund(NOW + 12, Charge(NOW + 5, 4), 2)
    trace.decide(NOW + 13, 3)
    trace.refund(NOW + 14, Charge(first.at_us, 2), 5)  # more than is there
    trace.refund(NOW + 15, Charge(NOW + 20, 1), 1)  # of a clock that was ahead
    trace.decide(NOW + 16, 1)
    trace.decide(NOW + 1_000_001, 5)
    assert differences(server, [trace]) == []
