"""`AlgorithmCompliance` checks an algorithm against the promises that stores and users rely on.

Every test replays the same seeded traces of hits, peeks, charges and refunds, even with a clock that goes back. The
tests call the algorithm directly, without a store.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from ..algorithms import Algorithm
from ..clock import SECOND
from ..decision import Charge, Decision
from ..quota import Quota
from .reference_store import check_equal, random_pause, values_of

START = 1_767_268_820 * SECOND + 500_000
_SEEDS = range(4)
_STEPS = 50


class TraceStep(NamedTuple):
    """One decision of a trace, the states before and after it, and the latest time before it."""

    state: Any
    now: int
    cost: int
    kept: Any
    decision: Decision
    latest: int


def _for_each_quota(test: Callable[[Any, Algorithm], None]) -> Callable[[Any], None]:
    """Make one test of all quotas of a suite. A failure names its quota."""

    def run(suite: "AlgorithmCompliance") -> None:
        for text in suite.quotas:
            try:
                test(suite, suite.make(Quota.parse(text)))
            except AssertionError as error:
                error.add_note(f"with the quota {text!r}")
                raise

    run.__doc__ = test.__doc__
    return run


class AlgorithmCompliance:
    """Check an algorithm against its contract.

    Subclass it in a pytest module, under a name that starts with ``Test``.

    Attributes:
        quotas: The quotas to test with, as text. Set your own when the defaults do not fit.
        counts_rejected: Whether a rejected hit may change the state.

    Example:
        class TestMine(AlgorithmCompliance):
            def make(self, quota):
                return Mine(quota)
    """

    quotas: ClassVar[tuple[str, ...]] = ("1/second", "5/minute", "7/10s", "3/100ms", "100/hour", "9999/day")
    counts_rejected: ClassVar[bool] = False

    def make(self, quota: Quota) -> Algorithm:
        """Return the algorithm to test.

        Args:
            quota: One of ``quotas``, parsed.
        """
        raise NotImplementedError

    @_for_each_quota
    def test_name_variant_and_lifetime_are_usable(self, algorithm: Algorithm) -> None:
        """Stores build keys from the name and the variant, and expiry from the lifetime."""
        for part in (algorithm.name, algorithm.variant):
            check_equal(type(part), str, "name and variant are text")
            check_equal("|" in part or "%" in part, False, f"{part!r} has | or %, which separate the parts of keys")
        check_equal(type(algorithm.lifetime), int, "the lifetime is in whole microseconds")
        check_equal(algorithm.lifetime > 0, True, "the lifetime is longer than 0")

    @_for_each_quota
    def test_a_new_state_allows_exactly_the_limit(self, algorithm: Algorithm) -> None:
        """At one instant a cost of ``limit`` is allowed, at once or in pieces, and no more."""
        full = algorithm.limit
        check_equal(algorithm.decide(None, START, full)[1].allowed, True, "the whole limit at once")
        state, allowed = None, 0
        for cost in (full // 2, 1, full // 3, full, 1, 1):
            state, decision = algorithm.decide(state, START, cost)
            if decision.allowed:
                allowed += cost
                actual, expected = (allowed <= full, decision.remaining), (True, full - allowed)
                check_equal(actual, expected, f"{allowed} allowed at one instant")
        if not self.counts_rejected:
            check_equal(algorithm.decide(state, START, 0)[1].remaining, full - allowed, "the remaining cost")

    @_for_each_quota
    def test_a_cost_over_the_limit_never_fits(self, algorithm: Algorithm) -> None:
        """It is rejected without a retry time, in any state. Every other rejection has a retry time."""
        for step in self._steps(algorithm):
            rejected, retry = not step.decision.allowed, step.decision.retry_us
            if step.cost > algorithm.limit:
                check_equal((rejected, retry), (True, None), f"a cost of {step.cost} with a limit of {algorithm.limit}")
            else:
                check_equal(rejected, retry is None or retry > 0, f"allowed, with retry_us {retry}")
                check_equal(retry is None, False, f"no retry time for a cost of {step.cost}, which fits the limit")

    @_for_each_quota
    def test_retry_after_is_exact(self, algorithm: Algorithm) -> None:
        """The same cost is allowed at that microsecond, and rejected one earlier."""
        for step in self._steps(algorithm):
            retry = step.decision.retry_us
            if retry:
                at = step.now + retry
                early, exact = (algorithm.decide(step.kept, time, step.cost)[1].allowed for time in (at - 1, at))
                check_equal((early, exact), (False, True), f"{step.cost} 1 us before and at retry_us {retry}")

    @_for_each_quota
    def test_rejections_and_peeks_return_the_same_state(self, algorithm: Algorithm) -> None:
        """The result is the same object, which is how a store knows that there is nothing to write."""
        for step in self._steps(algorithm):
            if step.cost == 0 or not (step.decision.allowed or self.counts_rejected):
                check_equal(step.kept is step.state, True, f"the state after cost {step.cost}, {step.decision.allowed}")
            check_equal(step.cost == 0 and not step.decision.allowed, False, "a peek is always allowed")

    @_for_each_quota
    def test_remaining_is_exact(self, algorithm: Algorithm) -> None:
        """That cost is allowed at the same instant, and a cost of one more is rejected."""
        for step in self._steps(algorithm):
            left = step.decision.remaining
            check_equal(left >= 0, True, "remaining is not negative")
            check_equal(algorithm.decide(step.kept, step.now, left)[1].allowed, True, f"{left} remaining")
            check_equal(algorithm.decide(step.kept, step.now, left + 1)[1].allowed, False, f"{left} + 1 more")

    @_for_each_quota
    def test_reset_after_is_exact(self, algorithm: Algorithm) -> None:
        """At that time the state equals a new one; a microsecond earlier, one microsecond is left."""
        for step in self._steps(algorithm):
            at = step.now + step.decision.reset_us
            for later in (at, at + algorithm.period // 3):
                self._check_same(algorithm, step.kept, None, later, "after reset_us")
            if step.decision.reset_us:
                check_equal(algorithm.decide(step.kept, at - 1, 0)[1].reset_us, 1, "reset_us, 1 us before")

    @_for_each_quota
    def test_lifetime_bounds_reset_after(self, algorithm: Algorithm) -> None:
        """A store may delete a key one lifetime after its last change."""
        for step in self._steps(algorithm, charges=False):
            reset, jump = step.decision.reset_us, max(0, step.latest - step.now)
            check_equal(reset <= algorithm.lifetime + jump, True, f"{reset} within the lifetime")

    @_for_each_quota
    def test_a_charge_is_a_hit_that_is_never_rejected(self, algorithm: Algorithm) -> None:
        """A cost that fits gives the state of a hit. Any other cost leaves nothing remaining."""
        for step in self._steps(algorithm):
            charged = algorithm.charge(step.state, step.now, step.cost)
            if step.decision.allowed and step.cost:
                self._check_same(algorithm, charged, step.kept, step.now, "charged and hit")
            elif step.cost:
                remaining = algorithm.decide(charged, step.now, 0)[1].remaining
                check_equal(remaining, 0, "remaining after a charge beyond the limit")

    @_for_each_quota
    def test_a_refund_at_once_undoes_the_hit(self, algorithm: Algorithm) -> None:
        """The state equals the one before the hit, now and at any later time."""
        # A queue can refund a whole hit only when its end is known to the microsecond.
        can_refund_fully = not algorithm.delays or algorithm.amount <= algorithm.period
        for step in self._hits(algorithm) if can_refund_fully else ():
            back = algorithm.refund(step.kept, step.now, _charge_of(step), step.cost)
            for wait in (0, algorithm.period // 3, algorithm.period):
                later = max(step.now + wait, step.latest)
                self._check_same(algorithm, back, step.state, later, "refunded at once")

    @_for_each_quota
    def test_a_late_refund_allows_nothing_extra(self, algorithm: Algorithm) -> None:
        """After any other hits, no more remains than without the first hit, and no less than without the refund."""
        for step in self._hits(algorithm):
            for wait in (0, 1, algorithm.period // 3, algorithm.period, 2 * algorithm.period + 1):
                now = max(step.now, step.latest) + wait
                for between in (0, max(1, algorithm.limit // 2)):
                    never, kept = (algorithm.charge(state, now, between) for state in (step.state, step.kept))
                    back = algorithm.refund(kept, now, _charge_of(step), step.cost)
                    left = [algorithm.decide(state, now, 0)[1].remaining for state in (kept, back, never)]
                    subject = f"remaining with the hit, with a refund {wait} us later, and without the hit"
                    check_equal(left, sorted(left), f"{subject}, with {between} consumed in between")

    @_for_each_quota
    def test_states_survive_as_bytes(self, algorithm: Algorithm) -> None:
        """``load`` is the inverse of ``dump``, and raises `ValueError` for other bytes."""
        for step in self._steps(algorithm):
            if step.kept is not None:
                data = algorithm.dump(step.kept)
                check_equal(type(data), bytes, "the type of a dump")
                check_equal(algorithm.dump(algorithm.load(data)), data, "dumped, loaded and dumped again")
                self._check_same(algorithm, algorithm.load(data), step.kept, step.now, "loaded")
        for data in (b"\xff", b"not a state"):
            with suppress(ValueError):
                raise AssertionError(f"loading {data!r} returned {algorithm.load(data)!r}")

    @_for_each_quota
    def test_numbers_are_whole(self, algorithm: Algorithm) -> None:
        """Decisions and states hold integers only: a float is exact only up to 2**53."""
        for step in self._steps(algorithm):
            charged = algorithm.charge(step.state, step.now, max(1, step.cost))
            back = algorithm.refund(charged, step.now, _charge_of(step), max(1, step.cost))
            for value in (values_of(step.decision), step.kept, charged, back):
                check_equal(_floats_in(value), [], f"floats in {value!r}")

    @_for_each_quota
    def test_time_never_runs_backwards(self, algorithm: Algorithm) -> None:
        """A time before the state's last time counts as the last time; waits are measured from the caller's time."""
        for step in self._hits(algorithm, back=False):
            for back in (1, algorithm.period // 7, 3 * algorithm.period):
                for cost in _costs(algorithm):
                    now = algorithm.decide(step.kept, step.now, cost)[1]
                    then = algorithm.decide(step.kept, step.now - back, cost)[1]
                    check_equal((then.allowed, then.remaining), (now.allowed, now.remaining), f"{back} us back")
                    check_equal(then.retry_us, now.retry_us and now.retry_us + back, f"retry_us from {back} us back")
                    check_equal(then.reset_us, now.reset_us and now.reset_us + back, f"reset_us from {back} us back")

    @_for_each_quota
    def test_states_are_never_changed_in_place(self, algorithm: Algorithm) -> None:
        """An old state gives the same decision after all later steps."""
        steps = list(self._steps(algorithm))
        for step in steps:
            again = algorithm.decide(step.state, step.now, step.cost)[1]
            check_equal(values_of(again), values_of(step.decision), "the same hit on the same state, later")

    def _steps(self, algorithm: Algorithm, back: bool = True, charges: bool = True) -> Iterator[TraceStep]:
        for seed in _SEEDS:
            yield from self._trace(algorithm, random.Random(seed), back, charges)  # noqa: S311 - the same in every run

    def _hits(self, algorithm: Algorithm, back: bool = True) -> Iterator[TraceStep]:
        return (step for step in self._steps(algorithm, back) if step.decision.allowed and step.cost)

    def _trace(self, algorithm: Algorithm, chance: random.Random, back: bool, charges: bool) -> Iterator[TraceStep]:
        state: Any = None
        now = latest = START - chance.randrange(algorithm.period)
        for _ in range(_STEPS):
            cost = chance.choice((0, 1, 1, 1, *_costs(algorithm), chance.randint(0, algorithm.limit)))
            kept, decision = algorithm.decide(state, now, cost)
            step = TraceStep(state, now, cost, kept, decision, latest)
            yield step
            state = self._next_state(algorithm, step, chance, charges)
            latest = max(latest, now)
            now = max(0, now + random_pause(algorithm, [decision], chance, back))

    def _next_state(self, algorithm: Algorithm, step: TraceStep, chance: random.Random, charges: bool) -> Any:
        """Return the state for the next step, sometimes after a charge or a refund."""
        if step.cost and step.decision.allowed and chance.random() < 0.1:
            return algorithm.refund(step.kept, step.now, _charge_of(step), chance.randint(1, step.cost))
        if charges and chance.random() < 0.1:
            return algorithm.charge(step.kept, step.now, chance.randint(1, algorithm.limit))
        return step.kept

    def _check_same(self, algorithm: Algorithm, state: Any, expected: Any, now: int, subject: str) -> None:
        for cost in (0, *_costs(algorithm)):
            first, second = (values_of(algorithm.decide(each, now, cost)[1]) for each in (state, expected))
            check_equal(first, second, f"{subject}, cost {cost} at {now}, states {state!r} and {expected!r}")


def _costs(algorithm: Algorithm) -> tuple[int, ...]:
    return (1, max(1, algorithm.limit // 3), algorithm.limit, algorithm.limit + 1)


def _charge_of(step: TraceStep) -> Charge:
    return Charge(step.decision.at_us, step.cost, step.decision.delay_us)


def _floats_in(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [number for part in value for number in _floats_in(part)]
    return [value] if isinstance(value, float) else []
