"""Rates whose amount follows the demand, or the health of the service."""

import math
import pickle
import time
from typing import Any

from shared_store import SharedStore
from tables import each, expect_error

from ratelimit_mw import Limiter, Quota, Rule, Verdict
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Tuning
from ratelimit_mw.limiter.adaptive import Aimd, Demand
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}
RATE = "adaptive 10..100/second"
STEPS = math.ceil(math.log(100 / 10) / math.log(1.05))


class Running:
    """A request in flight."""


def demand(floor: int, ceiling: int, start: int = 0) -> Demand:
    return Demand(Tuning("demand", floor, ceiling, SECOND, 0), start * 100 * SECOND)


def interval(rate: Demand, start: int, drained: int) -> int:
    """Let an interval of 100 windows pass, of which some are drained. Return the amount after it."""
    for window in range(100):
        for part in range(3):
            rate.note_decision((start * 100 + window) * SECOND + part, window < drained)
    return rate.amount((start + 1) * 100 * SECOND)


def test_demand_goes_from_the_floor_to_the_ceiling_and_back_in_the_steps_of_the_arithmetic() -> None:
    """It needs at most one step more. It begins in the middle, and stays within its bounds."""
    rate, now = demand(10, 100), 0
    assert rate.amount(0) == 50
    for drained, bound in ((0, 10), (100, 100), (0, 10)):
        steps = 0
        while rate.amount(now * 100 * SECOND) != bound:
            interval(rate, now, drained)
            now, steps = now + 1, steps + 1
        assert steps <= STEPS + 1
        assert interval(rate, now, drained) == bound
        now += 1


def test_demand_counts_the_windows_that_were_drained() -> None:
    """The amount rises from 90 of 100 on, and falls below 50."""
    for drained, *expected in ((90, 105, "grew"), (89, 100, "start"), (50, 100, "start"), (49, 95, "unused")):
        rate = demand(1, 200, start=7)
        assert [interval(rate, 7, drained), rate.reason] == expected
    assert (demand(90, 100).limit, demand(1, 1).amount(5)) == (90, 1)


def test_demand_falls_while_there_are_no_requests() -> None:
    """Each interval without a request is one without demand, however many there were."""
    for passed, amount in ((1, 105), (2, 100), (3, 95), (10**9, 10)):
        rate = demand(10, 200)
        interval(rate, 0, 100)
        assert rate.amount(passed * 100 * SECOND) == amount, passed


def test_health_grows_by_a_hundredth_and_falls_by_a_fifth() -> None:
    """It doubles until the first slow window. A rate that is not in use does not grow."""
    rate, now, seen = Aimd(Tuning("health", 100, 1000, SECOND, SECOND), 0), 0, []
    for took, drained in ((1, True), (9, True), (1, True), (1, False), (1, True)):
        for _ in range(100):
            rate.note_decision(now, drained)
            rate.note_response(took * SECOND // 5)
        now += SECOND
        seen.append(rate.amount(now))
    assert seen == [200, 160, 170, 170, 180]


def test_health_does_not_grow_by_requests_that_still_run() -> None:
    """They are no sign that the quota is in use."""
    rate, running = Aimd(Tuning("health", 10, 1000, SECOND, SECOND), 0), list[Running]()
    for window in range(5):
        for _ in range(100):
            running.append(flight := Running())
            rate.requests.add(flight)
            rate.note_decision(window * SECOND, False)
            rate.note_response(1)
    assert (rate.amount(6 * SECOND), len(rate.requests)) == (20, 500)


def limiter(store: Any = None, tune: str = "demand", clock: Any = None, limits: Any = RATE, **options: Any) -> Limiter:
    target = {"target": "250ms"} if tune == "health" else {}
    rule = Rule(name="api", limits=limits, **{"key": [], "tune": tune, **target, **options})
    return Limiter([rule], store, clock or ManualClock(1_000_000.0))


def burst(limits: Limiter, **features: Any) -> list[Verdict]:
    """Hit until a request is rejected, and return all verdicts."""
    verdicts = [limits.hit({**WHO, **features})]
    while verdicts[-1]:
        verdicts.append(limits.hit({**WHO, **features}))
    return verdicts


def drain(limits: Limiter, windows: int = 100) -> int:
    """Drain some windows. Return the amount in the next one."""
    for _ in range(windows):
        burst(limits)
        limits.clocks.own.advance(1)  # type: ignore[union-attr]
    return limits.peek(WHO).decisions[0].limit


def test_the_amount_follows_the_demand_in_memory() -> None:
    """The headers and the decisions have the amount of the moment."""
    limits = limiter(algorithm="fixed-window")
    clock: Any = limits.clocks.own
    first = burst(limits)[0].decisions[0]
    assert (first.limit, first.remaining, str(first.quota)) == (50, 49, "50/second")
    clock.advance(1)
    amounts = [drain(limits, 99), drain(limits)]
    clock.advance(100)
    limits.hit(WHO)
    clock.advance(101)
    assert [*amounts, len(burst(limits)) - 1] == [52, 55, 50]


@each(("costs", "amount"), [([50], 52), ([30, 30], 52), ([30], 47)])
def test_a_second_is_drained_without_a_rest_or_by_a_rejection(costs: list[int], amount: int) -> None:
    limits = limiter(algorithm="fixed-window")
    for _ in range(100):
        for cost in costs:
            limits.hit(WHO, cost)
        limits.clocks.own.advance(1)  # type: ignore[union-attr]
    assert limits.peek(WHO).decisions[0].limit == amount


def test_the_amount_follows_the_demand_on_a_store(url: str) -> None:
    """All stores work, because another amount is no other key."""
    limits = limiter(url, limits="adaptive 4..40/second")
    try:
        assert [len(burst(limits)) - 1, drain(limits), len(burst(limits)) - 1] == [20, 21, 21]
        limit = limits.peek(WHO).decisions[0].source
        assert limit.at(4, "").prefix == limit.at(40, "").prefix
    finally:
        limits.close()


def test_each_process_applies_its_amount_to_the_shared_count(shared: SharedStore, clock: ManualClock) -> None:
    """A process with a smaller amount rejects sooner, and the largest amount bounds the fleet."""
    one, other = (limiter(shared, clock=clock, algorithm="fixed-window") for _ in range(2))
    assert drain(one) == 52
    assert len(burst(other)) - 1 == 50
    assert (len(burst(one)) - 1, one.peek(WHO).decisions[0].limit) == (2, 52)


def test_the_amount_follows_the_demand_without_the_store(shared: SharedStore) -> None:
    """The process counts its part of the amount of the moment. A rejection without a count is no demand."""
    limits = limiter(shared, algorithm="fixed-window", on_store_error="local")
    denied = limiter(shared, algorithm="fixed-window", on_store_error="deny")
    assert limits.hit(WHO).decisions[0].limit == 50
    shared.down = True
    assert burst(limits)[-1].decisions[0].local
    assert (drain(limits), drain(denied)) == (52, 47)


@each(
    ("status", "took", "queued", "amount"),
    [
        (200, 0.0, 0.0, 40),
        (200, 0.3, 0.0, 16),
        (500, 0.0, 0.0, 16),
        (None, 0.0, 0.0, 20),
        (None, 0.3, 0.0, 16),
        (404, 0.0, 0.0, 40),
        (200, 0.0, 5.0, 16),
        (200, 0.3, -60.0, 16),  # the clock of the proxy is wrong
        (200, 0.0, 61.0, 40),
    ],
)
@each("store", [MemoryStore, SharedStore])
def test_the_amount_follows_the_health_of_the_service(
    store: Any, status: int | None, took: float, queued: float, amount: int
) -> None:
    """Slow responses and errors lower it. The time in the queue of a proxy counts. A refund has no time.

    A request that was cancelled, as when its client has left, counts only if it was slow.
    """
    limits = limiter(store(), "health", limits="adaptive 5..1000/second")
    clock: Any = limits.clocks.own
    limits.refund(limits.hit(WHO))
    for _ in range(20):
        for verdict in burst(limits, request_start=time.time() - queued if queued else None):
            clock.advance(took if verdict else 0)
            if verdict:
                limits.conclude(verdict, status)
                limits.conclude(verdict, 200)
        if (now := limits.peek(WHO).decisions[0].limit) != 20:
            break
        clock.advance(1)
    assert now == amount


def test_a_verdict_keeps_its_cost() -> None:
    """A true cost replaces it, and a verdict can be pickled."""
    limits = limiter(tune="health", cost=3)
    verdict = limits.hit(WHO)
    limits.settle(verdict, 5)
    assert limits.peek(WHO, 0).decisions[0].remaining == 15
    copied = pickle.loads(pickle.dumps(verdict))
    assert (copied.decisions[0].limit, copied.decisions[0].hit[2]) == (20, 3)


def test_a_reserve_is_a_share_of_the_amount() -> None:
    """Each class leaves the same share to those above it, whatever the amount."""
    limits = limiter(reserve={"critical": "20%"}, algorithm="fixed-window")
    assert [len(burst(limits, priority=name)) - 1 for name in ("normal", "critical")] == [40, 10]
    limits.clocks.own.advance(1)  # type: ignore[union-attr]
    drain(limits, 99)
    assert len(burst(limits)) - 1 == 42


def test_limits_from_a_function_are_adaptive_too() -> None:
    """A function may return one where the rule has the option."""
    assert limiter(limits=lambda ip: RATE, key=["ip"]).hit(WHO).decisions[0].limit == 50


def test_a_cost_fits_the_smallest_amount() -> None:
    """Otherwise the amount could never rise again. An estimate is capped, and a slot is one request."""
    expect_error("the cost 11 is above 10, the smallest part of the limit adaptive 10..100/second", limiter, cost=11)
    limits = limiter(cost="json:tokens", unit="tokens")
    assert limits.hit({**WHO, "json:tokens": 99}).decisions[0].remaining == 40
    assert limits.rules.rules[0].limits[0].text == RATE
    assert limiter(limits=["adaptive 1..2 concurrent", "9/minute"], tune=None, target=1, cost=3).hit(WHO)


def test_an_adaptive_quota_is_text_again() -> None:
    """It keeps its burst."""
    for text in (RATE, "adaptive 1..5/minute burst 9", "adaptive 5..200 concurrent"):
        assert str(Quota(text)) == text
        assert Quota(str(Quota(text))) == Quota(text)
