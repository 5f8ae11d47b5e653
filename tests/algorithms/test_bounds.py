"""What every algorithm promises of the traffic that it lets pass: never too much, and never too little."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from traces import BUCKETS, SPECS, Shape, pauses, shapes, starts

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.testing import ManualClock

KINDS = pytest.mark.parametrize("kind", SPECS)
SECOND, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000

Passed = list[tuple[int, int]]


def most(shape: Shape, span: int) -> int:
    """The most that may pass within ``span`` microseconds, first and last one included."""
    amount, period = shape.amount, shape.period
    if shape.kind == "token-bucket-interval":  # a capacity for each refill that the span may touch
        return shape.capacity * (span // period + 2)
    if shape.kind in BUCKETS:
        return shape.capacity + span * amount // period
    if shape.kind in ("fixed-window", "sliding-window-counter"):  # N for each window touched: 2N per P
        return amount * (span // period + 2)
    lap = period if shape.kind.startswith("sliding-window-log") else period - (shape.precision or 0) + 1
    return amount * (span // lap + 1)


def assert_within_bounds(shape: Shape, passed: Passed) -> None:
    for first, (start, _) in enumerate(passed):
        total = 0
        for now, cost in passed[first:]:
            total += cost
            assert total <= most(shape, now - start), (shape, start, now)


@pytest.mark.slow
@KINDS
@examples(40)
@given(data=st.data())
def test_a_greedy_client_stays_within_the_bound(kind: str, data: st.DataObject) -> None:
    """One that takes all that is left, at the edges of windows and at the very moment of each retry, gets no more."""
    shape = data.draw(shapes(kind))
    algorithm, state, now = shape.build(), None, data.draw(starts(shape))
    passed: Passed = []
    for move in data.draw(
        st.lists(st.sampled_from(("edge", "next", "retry", "retry", "wait")), min_size=20, max_size=60)
    ):
        now = _moved(algorithm, state, now, move, data.draw(pauses(shape, back=False)) if move == "wait" else 0)
        share = algorithm.decide(state, now, 0)[1].remaining
        taken = share if move != "next" else min(share, 1)
        state, decision = algorithm.decide(state, now, taken)
        assert decision.allowed
        state = algorithm.decide(state, now, 1)[0] if taken == share else state  # one too many, which a log may count
        passed.append((now, taken))
    assert_within_bounds(shape, passed)


def _moved(algorithm: Algorithm, state: Any, now: int, move: str, pause: int) -> int:
    """The last microsecond of a window, the one after it, the moment of a retry, or some time later."""
    edge = now - now % algorithm.period + algorithm.period
    if move == "edge":
        return edge - 1
    if move == "next":
        return edge
    return now + (algorithm.decide(state, now, 1)[1].retry_us or 0) if move == "retry" else now + pause


@KINDS
@examples(40)
@given(data=st.data())
def test_who_keeps_to_the_rate_is_never_rejected_whenever_he_starts(kind: str, data: st.DataObject) -> None:
    """The same from any microsecond on, for three periods of any quota."""
    shape = data.draw(shapes(kind, st.integers(2, 40)))
    whole = Shape(kind, shape.amount, shape.period, None, shape.precision)
    algorithm, state, start = whole.build(), None, data.draw(starts(shape))
    for hit in range(3 * shape.amount + 1):
        state, decision = algorithm.decide(state, start - (-hit * shape.period // shape.amount), 1)
        assert decision.allowed, hit


@examples(200)
@given(data=st.data())
def test_even_costs_with_room_for_one_more_are_never_rejected_by_the_counter(data: st.DataObject) -> None:
    """A cost c at an even pace, R of it per period, is allowed if R + c - 1 <= N, from any microsecond on."""
    hits, cost, step = (data.draw(st.integers(1, most)) for most in (40, 50, 10**7))
    period, rate = hits * step, hits * cost
    counter, state = Shape("sliding-window-counter", rate + cost - 1, period, None).build(), None
    start = data.draw(st.integers(0, 2 * period))
    for hit in range(4 * hits):
        state, decision = counter.decide(state, start + hit * step, cost)
        assert decision.allowed, hit


def test_a_larger_cost_needs_room_in_the_counter_and_none_in_a_bucket() -> None:
    """31 every ten seconds are the whole rate of 186/minute. A bucket of 186 allows them, and the counter from 216."""
    counter = "sliding-window-counter"
    for kind, limit, all_pass in (
        (counter, 186, False),
        (counter, 215, False),
        (counter, 216, True),
        ("gcra", 186, True),
    ):
        algorithm, state, allowed = Shape(kind, limit, MINUTE, None).build(), None, []
        for hit in range(60):
            state, decision = algorithm.decide(state, hit * 10 * SECOND, 31)
            allowed.append(decision.allowed)
        assert all(allowed) == all_pass, (kind, limit)


def test_a_key_is_kept_until_it_is_fresh_although_its_amount_was_cut() -> None:
    """What was consumed under a large amount drains slowly under a small one, and counts until reset_after."""
    clock, store, key = ManualClock(1_000_000.0), MemoryStore(), {"ip": "192.0.2.7"}
    rules = [Rule(name="cut", limits=limits, algorithm="token-bucket") for limits in ("10/day", "1/day")]
    before, after = (Limiter([rule], store=store, clock=clock) for rule in rules)
    before.hit(key, 10)
    assert after.peek(key).decisions[0].reset_after == 10 * 86_400
    for _ in range(8):
        clock.advance(86_400)
        assert not after.hit(key), clock.time
