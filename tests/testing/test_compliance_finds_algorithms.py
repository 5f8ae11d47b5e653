"""The compliance suite finds mistakes: an algorithm with one mistake does not pass."""

from typing import Any

import pytest

from ratelimit_mw import Decision
from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.algorithms.bucket import TokenBucket
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.testing import AlgorithmCompliance


class CopiesState(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        return kept and (*kept,), decision


class RetriesEarly(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        if decision.retry_us:
            decision.retry_us -= 1
        return kept, decision


class RetriesLate(RetriesEarly):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        if decision.retry_us:
            decision.retry_us += 2
        return kept, decision


class ReportsMoreRemaining(SlidingWindowCounter):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.remaining += decision.remaining > 2
        return kept, decision


class ResetsEarly(SlidingWindowCounter):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.reset_us = min(decision.reset_us, self.period)
        return kept, decision


class LivesTooShort(SlidingWindowCounter):
    @property
    def lifetime(self) -> int:
        return self.period


class RefundsLateHits(TokenBucket):
    def refund(self, state: Any, now: int, consumed: Any, cost: int) -> Any:
        return super().refund(state, now, consumed._replace(at_us=now), cost)


class NeverRefunds(TokenBucket):
    def refund(self, state: Any, now: int, consumed: Any, cost: int) -> Any:
        return state


class ChargesUpToTheLimit(FixedWindow):
    def charge(self, state: Any, now: int, cost: int) -> Any:
        return super().charge(state, now, 1)


class ChargesFloats(FixedWindow):
    def charge(self, state: Any, now: int, cost: int) -> Any:
        end, count, began = super().charge(state, now, cost)
        return end, float(count), began


class ReturnsFloats(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.reset_us = float(decision.reset_us)  # type: ignore[assignment]
        return kept, decision


class LoadsAnything(FixedWindow):
    def load(self, data: bytes) -> Any:
        return super().load(data) if data[:1].isdigit() else (0, 0, 0)


class LosesNumbers(TokenBucket):
    def dump(self, state: Any) -> bytes:
        return super().dump((state[0], state[1], 0, state[3]))


class GoesBack(TokenBucket):
    def _drain(self, state: tuple[int, int, int, int], now: int) -> tuple[int, int, int, int]:
        return (now, *state[1:]) if now < state[0] else super()._drain(state, now)


class ChangesInPlace(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        if isinstance(state, list) and kept is not state:
            state[:] = kept
            return state, decision
        return kept if kept is state else list(kept), decision


class RetriesWhatNeverFits(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.retry_us = self.period if decision.retry_us is None else decision.retry_us
        return kept, decision


class AllowsOneMore(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        return super().decide(state and (state[0], max(0, state[1] - 1), state[2]), now, cost)


class BreaksKeys(FixedWindow):
    @property
    def variant(self) -> str:
        return "a|b"


ALGORITHMS = {
    CopiesState: "test_rejections_and_peeks_return_the_same_state",
    RetriesEarly: "test_retry_after_is_exact",
    RetriesLate: "test_retry_after_is_exact",
    ReportsMoreRemaining: "test_remaining_is_exact",
    ResetsEarly: "test_reset_after_is_exact",
    LivesTooShort: "test_lifetime_bounds_reset_after",
    RefundsLateHits: "test_a_late_refund_allows_nothing_extra",
    NeverRefunds: "test_a_refund_at_once_undoes_the_hit",
    ChargesUpToTheLimit: "test_a_charge_is_a_hit_that_is_never_rejected",
    ChargesFloats: "test_numbers_are_whole",
    ReturnsFloats: "test_numbers_are_whole",
    LoadsAnything: "test_states_survive_as_bytes",
    LosesNumbers: "test_states_survive_as_bytes",
    GoesBack: "test_time_never_runs_backwards",
    ChangesInPlace: "test_states_are_never_changed_in_place",
    RetriesWhatNeverFits: "test_a_cost_over_the_limit_never_fits",
    AllowsOneMore: "test_a_new_state_allows_exactly_the_limit",
    BreaksKeys: "test_name_variant_and_lifetime_are_usable",
}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.__name__)
def test_suite_finds_the_mistake_of_an_algorithm(algorithm: type[Algorithm]) -> None:
    """Each mistake fails its test."""
    suite = type("Suite", (AlgorithmCompliance,), {"make": lambda self, quota: algorithm(quota)})()
    with pytest.raises(AssertionError) as raised:
        getattr(suite, ALGORITHMS[algorithm])()
    assert raised.value.__notes__[0].startswith("with the quota ")


def test_every_algorithm_test_has_a_mistake_to_find() -> None:
    """Each test of the suite finds one of the mistakes of this file."""
    tests = {name for name in dir(AlgorithmCompliance) if name.startswith("test_")}
    assert tests == set(ALGORITHMS.values())
