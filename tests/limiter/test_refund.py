"""Refunds and charges of the algorithms: a hit is undone where it was counted, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from reference_base import Entry
from tables import each
from traces import SPECS, Shape, costs, pauses, result_of, shapes, starts

from ratelimit_mw.decision import Charge


@each("kind", SPECS)
def test_a_refunded_lone_hit_leaves_no_state(kind: str) -> None:
    """The state is None again, so a store may drop the key. It may have dropped it before the refund."""
    algorithm = Shape(kind, 3, 60_000_000).build()
    assert algorithm.refund(None, 5, Charge(0, 1), 1) is None
    state, decision = algorithm.decide(None, 5, 2)
    half = algorithm.refund(state, 5, Charge(decision.at_us, 2), 1)
    assert half is not None
    assert algorithm.refund(half, 5, Charge(decision.at_us, 1), 1) is None


def refunds(shape: Shape) -> bool:
    """Queues above one per microsecond refund nothing."""
    return shape.kind != "leaky-bucket-queue" or shape.amount <= shape.period


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
@examples(60)
@given(data=st.data())
def test_refunds_and_charges_agree_with_the_reference(kind: str, data: st.DataObject) -> None:
    """Late and partial refunds in any order, with charges between them."""
    shape = data.draw(shapes(kind).filter(refunds))
    algorithm, twin = shape.build(), shape.reference()
    state, now = None, data.draw(starts(shape))
    held: list[tuple[Charge, Entry]] = []
    for move in data.draw(st.lists(st.sampled_from(("hit", "hit", "refund", "charge")), min_size=1, max_size=30)):
        now += data.draw(pauses(shape, back=False))
        if move == "refund" and held:
            consumed, entry = held.pop(data.draw(st.integers(0, len(held) - 1)))
            back = data.draw(st.integers(1, consumed.cost))
            state = algorithm.refund(state, now, consumed, back)
            twin.refund(now, entry, back)
            if back < consumed.cost:
                held.append((consumed._replace(cost=consumed.cost - back), entry))
        elif move == "charge":
            cost = data.draw(st.integers(1, 2 * shape.capacity))
            state = algorithm.charge(state, now, cost)
            twin.charge(now, cost)
        cost = data.draw(costs(shape))
        state, decision = algorithm.decide(state, now, cost)
        expected, counted = twin.hit(now, cost)
        assert result_of(decision) == expected
        if counted is not None:
            held.append((Charge(decision.at_us, cost, decision.delay_us), counted))


def test_a_queue_above_one_per_microsecond_refunds_nothing() -> None:
    """Whole microseconds do not show which hit is the last, so nothing is returned."""
    queue = Shape("leaky-bucket-queue", 7000, 3000).build()
    state, decision = queue.decide(None, 0, 5)
    assert queue.refund(state, 0, Charge(decision.at_us, 5, decision.delay_us), 5) is state
