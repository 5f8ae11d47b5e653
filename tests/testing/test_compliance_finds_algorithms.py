"""The compliance suite finds mistakes: an algorithm with one mistake does not pass."""

from collections.abc import Callable
from typing import Any

import pytest
from tables import each

from ratelimit_mw import Decision
from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.algorithms.bucket import TokenBucket
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.testing import AlgorithmCompliance


def deciding(base: type[Any], change: Callable[[Any, Any, Decision], object]) -> type[Algorithm]:
    """Return an algorithm that changes its decisions, or returns another state."""

    def decide(self: Any, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = base.decide(self, state, now, cost)
        return change(self, kept, decision) or kept, decision

    return type("Wrong", (base,), {"decide": decide})


def with_(base: type[Any], **members: Any) -> type[Algorithm]:
    return type("Wrong", (base,), members)


def retries(by: int) -> type[Algorithm]:
    def change(_: Any, __: Any, decision: Decision) -> None:
        decision.retry_us = decision.retry_us and decision.retry_us + by

    return deciding(FixedWindow, change)


def more_remaining(_: Any, __: Any, decision: Decision) -> None:
    decision.remaining += decision.remaining > 2


def early_reset(algorithm: Any, _: Any, decision: Decision) -> None:
    decision.reset_us = min(decision.reset_us, algorithm.period)


def float_reset(_: Any, __: Any, decision: Decision) -> None:
    decision.reset_us = float(decision.reset_us)  # type: ignore[assignment]


def retry_of_what_never_fits(algorithm: Any, _: Any, decision: Decision) -> None:
    decision.retry_us = algorithm.period if decision.retry_us is None else decision.retry_us


class ChangesInPlace(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        if isinstance(state, list) and kept is not state:
            state[:] = kept
            return state, decision
        return kept if kept is state else list(kept), decision


def one_more(self: Any, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
    return FixedWindow.decide(self, state and (state[0], max(0, state[1] - 1), state[2]), now, cost)


def float_charge(self: Any, state: Any, now: int, cost: int) -> Any:
    end, count, began = FixedWindow.charge(self, state, now, cost)
    return end, float(count), began


def late_refund(self: Any, state: Any, now: int, consumed: Any, cost: int) -> Any:
    return TokenBucket.refund(self, state, now, consumed._replace(at_us=now), cost)


def drain_back(self: Any, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
    return TokenBucket.decide(self, state and (min(now, state[0]), *state[1:]), now, cost)


MISTAKES: dict[str, list[type[Algorithm]]] = {
    "test_rejections_and_peeks_return_the_same_state": [
        deciding(FixedWindow, lambda _, kept, __: kept and (*kept,)),
    ],
    "test_retry_after_is_exact": [retries(-1), retries(1)],
    "test_remaining_is_exact": [deciding(SlidingWindowCounter, more_remaining)],
    "test_reset_after_is_exact": [deciding(SlidingWindowCounter, early_reset)],
    "test_lifetime_bounds_reset_after": [with_(SlidingWindowCounter, lifetime=property(lambda self: self.period))],
    "test_a_late_refund_allows_nothing_extra": [with_(TokenBucket, refund=late_refund)],
    "test_a_refund_at_once_undoes_the_hit": [with_(TokenBucket, refund=lambda _, state, *__: state)],
    "test_a_charge_is_a_hit_that_is_never_rejected": [
        with_(FixedWindow, charge=lambda self, state, now, _: FixedWindow.charge(self, state, now, 1)),
    ],
    "test_numbers_are_whole": [with_(FixedWindow, charge=float_charge), deciding(FixedWindow, float_reset)],
    "test_states_survive_as_bytes": [
        with_(FixedWindow, load=lambda self, data: FixedWindow.load(self, data) if data[:1].isdigit() else (0, 0, 0)),
        with_(TokenBucket, dump=lambda self, state: TokenBucket.dump(self, (*state[:2], 0, state[3]))),
    ],
    "test_time_never_runs_backwards": [with_(TokenBucket, decide=drain_back)],
    "test_states_are_never_changed_in_place": [ChangesInPlace],
    "test_a_cost_over_the_limit_never_fits": [deciding(FixedWindow, retry_of_what_never_fits)],
    "test_a_new_state_allows_exactly_the_limit": [with_(FixedWindow, decide=one_more)],
    "test_name_variant_and_lifetime_are_usable": [with_(FixedWindow, variant="a|b")],
}


@each(("test", "algorithm"), [(test, algorithm) for test, found in MISTAKES.items() for algorithm in found])
def test_suite_finds_the_mistake_of_an_algorithm(test: str, algorithm: Any) -> None:
    """Each mistake fails its test."""
    suite = type("Suite", (AlgorithmCompliance,), {"make": lambda self, quota: algorithm(quota)})()
    with pytest.raises(AssertionError) as raised:
        getattr(suite, test)()
    assert raised.value.__notes__[0].startswith("with the quota ")


def test_every_algorithm_test_has_a_mistake_to_find() -> None:
    assert {name for name in dir(AlgorithmCompliance) if name.startswith("test_")} == MISTAKES.keys()
