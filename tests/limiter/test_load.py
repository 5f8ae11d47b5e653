"""The rules in simulated time, against a service of 20 servers whose capacity halves after 60 s and returns at 120 s.

It serves 400 requests per second, each in 50 ms, and clients give up after 1 s.
"""

from collections.abc import Sequence

import pytest

from benchmarks.load.plant import Plant, Second, simulate

pytestmark = pytest.mark.slow
CAPACITY = 400
HALF = ((0.0, 1.0), (60.0, 0.5), (120.0, 1.0))
TARGET = 0.25
LIMITS = "adaptive 5..200 concurrent"
SETTLED = {(30, 60): 1.0, (90, 120): 0.5, (150, 180): 1.0}
"""The capacity from 30 s after each change on."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 20))]


def goodput(seconds: Sequence[Second]) -> float:
    return sum(each.goodput for each in seconds) / len(seconds)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_the_goodput_follows_the_capacity(times: int, seed: int) -> None:
    """It has 90% of it, does not swing, and 95% of the admitted requests take at most twice the target."""
    run = simulate(Plant({"normal": CAPACITY * times}, capacity=HALF, seed=seed), LIMITS, target=TARGET)
    for (begin, end), share in SETTLED.items():
        part = run[begin:end]
        assert goodput(part) >= 0.9 * CAPACITY * share
        tens = [goodput(run[at : at + 10]) for at in range(begin, end, 10)]
        assert max(abs(each - goodput(part)) for each in tens) < 0.1 * goodput(part)
        took = sorted(time for each in part for time in each.times)
        assert took[len(took) * 95 // 100] <= 2 * TARGET


@pytest.mark.thorough
def test_without_the_rule_the_service_collapses() -> None:
    """At three times the capacity it works for clients that have given up."""
    run = simulate(Plant({"normal": CAPACITY * 3}, seconds=60))
    assert goodput(run[30:]) < 0.5 * CAPACITY


@pytest.mark.parametrize("seed", SEEDS)
def test_critical_requests_are_served(seed: int) -> None:
    """99% of them are, while they are half of the capacity and all requests together are three times as many."""
    plant = Plant({"critical": 200, "normal": 500, "background": 500}, seconds=60, seed=seed)
    run = simulate(plant, LIMITS, target=TARGET)
    arrived = sum(each.arrived.get("critical", 0) for each in run)
    assert sum(each.served.get("critical", 0) for each in run) >= 0.99 * arrived
    assert goodput(run[10:]) >= 0.9 * CAPACITY
