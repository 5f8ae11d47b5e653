"""``AlgorithmCompliance``: proves an algorithm against the promises that stores and users build on.

Every test plays the same seeded traces: hits, looks, charges and corrections, also with a clock that goes back. It
asks the algorithm alone; no store takes part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from ..algorithms import Algorithm
from ..clock import SECOND
from ..decision import Charge, Decision
from ..quota import Quota
from .answers import answer, same

__all__ = ["AlgorithmCompliance"]

START = 1_767_268_820 * SECOND + 500_000
_SEEDS = range(8)
_STEPS = 50


class Step(NamedTuple):
    """One decision of a trace: what was asked of which state, what came out, and the latest time seen before."""

    state: Any
    now: int
    cost: int
    kept: Any
    decision: Decision
    latest: int


class AlgorithmCompliance:
    """Subclass it in a test module of pytest, under a name that starts with ``Test``:

        class TestMine(AlgorithmCompliance):
            def make(self, quota):
                return Mine(quota)

    ``quotas`` are the texts of the quotas that it is proven with; set your own where the defaults do not fit.
    ``counts_rejected`` says that a rejected hit may change the state.
    """

    quotas: ClassVar[tuple[str, ...]] = ("1/second", "5/minute", "7/10s", "3/100ms", "100/hour", "9999/day")
    counts_rejected: ClassVar[bool] = False

    def make(self, quota: Quota) -> Algorithm:
        """The algorithm for one quota."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        metafunc.parametrize("algorithm", [self.make(Quota.parse(text)) for text in self.quotas], ids=self.quotas)

    def test_names_and_sizes_mean_something(self, algorithm: Algorithm) -> None:
        """Keys are made of the name and the variant, expiry of the lifetime."""
        for part in (algorithm.name, algorithm.variant):
            same(type(part), str, "name and variant are text")
            same("|" in part or "%" in part, False, f"{part!r} takes part in keys, where | separates")
        same(type(algorithm.lifetime), int, "the lifetime is in whole microseconds")
        same(algorithm.lifetime > 0, True, "the lifetime is longer than 0")

    def test_a_fresh_state_allows_the_limit_and_no_more(self, algorithm: Algorithm) -> None:
        """At one instant exactly ``limit`` passes, whether it comes at once or piece by piece."""
        full = algorithm.limit
        same(algorithm.decide(None, START, full)[1].allowed, True, "the whole limit at once")
        state, passed = None, 0
        for cost in (full // 2, 1, full // 3, full, 1, 1):
            state, decision = algorithm.decide(state, START, cost)
            if decision.allowed:
                passed += cost
                same((passed <= full, decision.remaining), (True, full - passed), f"{passed} passed at one instant")
        if not self.counts_rejected:
            same(algorithm.decide(state, START, 0)[1].remaining, full - passed, "what remains")

    def test_a_cost_over_the_limit_never_fits(self, algorithm: Algorithm) -> None:
        """It is rejected with no time to retry, in any state; whatever is not over the limit has such a time."""
        for step in self._steps(algorithm):
            rejected, retry = not step.decision.allowed, step.decision.retry_us
            if step.cost > algorithm.limit:
                same((rejected, retry), (True, None), f"a cost of {step.cost} with a limit of {algorithm.limit}")
            else:
                same(rejected, retry is None or retry > 0, f"allowed, with retry_us {retry}")
                same(retry is None, False, f"no time to retry a cost of {step.cost}, which fits the limit")

    def test_retry_after_is_exact(self, algorithm: Algorithm) -> None:
        """The same cost is allowed at that microsecond, and rejected one earlier."""
        for step in self._steps(algorithm):
            retry = step.decision.retry_us
            if retry:
                at = step.now + retry
                same(algorithm.decide(step.kept, at, step.cost)[1].allowed, True, f"{step.cost} after {retry} us")
                early = algorithm.decide(step.kept, at - 1, step.cost)[1].allowed
                same(early, False, f"{step.cost} already 1 us before retry_us {retry}")

    def test_rejected_and_looking_leave_the_state_alone(self, algorithm: Algorithm) -> None:
        """The state that comes back is the very object that was given, so that a store knows not to write."""
        for step in self._steps(algorithm):
            if step.cost == 0 or not (step.decision.allowed or self.counts_rejected):
                same(step.kept is step.state, True, f"the state after cost {step.cost}, {step.decision.allowed}")
            same(step.cost == 0 and not step.decision.allowed, False, "a look is always allowed")

    def test_remaining_is_what_more_fits(self, algorithm: Algorithm) -> None:
        """That much more is allowed at the same instant, and not one more."""
        for step in self._steps(algorithm):
            left = step.decision.remaining
            same(left >= 0, True, "remaining is not negative")
            same(algorithm.decide(step.kept, step.now, left)[1].allowed, True, f"{left} remain")
            same(algorithm.decide(step.kept, step.now, left + 1)[1].allowed, False, f"{left} + 1 more")

    def test_reset_after_means_fresh(self, algorithm: Algorithm) -> None:
        """From then on nothing tells the state from a fresh one; a microsecond before, one is still left to wait."""
        for step in self._steps(algorithm):
            at = step.now + step.decision.reset_us
            for later in (at, at + 1, at + algorithm.period // 3, at + 5 * algorithm.period):
                self._same_answers(algorithm, step.kept, None, later, "after reset_us")
            if step.decision.reset_us:
                same(algorithm.decide(step.kept, at - 1, 0)[1].reset_us, 1, "reset_us one before")

    def test_lifetime_bounds_reset_after(self, algorithm: Algorithm) -> None:
        """A store that keeps a key for the lifetime after its last change loses nothing."""
        for step in self._steps(algorithm, charges=False):
            jump = max(0, step.latest - step.now)
            same(step.decision.reset_us <= algorithm.lifetime + jump, True, f"{step.decision.reset_us} in its lifetime")

    def test_charge_is_a_hit_without_asking(self, algorithm: Algorithm) -> None:
        """A cost that fits leaves what a hit would; one that does not fit is owed, and waited for exactly."""
        for step in self._steps(algorithm):
            charged = algorithm.charge(step.state, step.now, step.cost)
            if step.decision.allowed and step.cost:
                self._same_answers(algorithm, charged, step.kept, step.now, "charged and hit")
            elif step.cost:
                same(algorithm.decide(charged, step.now, 0)[1].remaining, 0, "what remains when more is owed")

    def test_giving_back_at_once_undoes_the_hit(self, algorithm: Algorithm) -> None:
        """As if it had not been: now and at any later time."""
        for step in self._steps(algorithm):
            if step.decision.allowed and step.cost and self._returns(algorithm, step):
                for later in (step.now, step.now + algorithm.period // 3, step.now + algorithm.period):
                    back = algorithm.give_back(step.kept, step.now, _consumed(step), step.cost)
                    later = max(later, step.latest)
                    self._same_answers(algorithm, back, step.state, later, "given back at once")

    def test_giving_back_later_admits_nothing_extra(self, algorithm: Algorithm) -> None:
        """Whatever came between: no more remains than if the hit had never been, and no less than before."""
        for step in self._steps(algorithm):
            if not (step.decision.allowed and step.cost):
                continue
            for wait in (0, 1, algorithm.period // 3, algorithm.period, 2 * algorithm.period + 1):
                now = max(step.now, step.latest) + wait
                for between in (0, max(1, algorithm.limit // 2)):
                    never, kept = (algorithm.charge(state, now, between) for state in (step.state, step.kept))
                    back = algorithm.give_back(kept, now, _consumed(step), step.cost)
                    left = [algorithm.decide(state, now, 0)[1].remaining for state in (kept, back, never)]
                    what = f"remaining when kept, given back {wait} us later, and never consumed"
                    same(left, sorted(left), f"{what}, with {between} consumed in between")

    def test_states_survive_as_bytes(self, algorithm: Algorithm) -> None:
        """``load`` is the inverse of ``dump``, and rejects what no dump is."""
        for step in self._steps(algorithm):
            if step.kept is not None:
                data = algorithm.dump(step.kept)
                same(type(data), bytes, "dump makes bytes")
                same(algorithm.dump(algorithm.load(data)), data, "dumped, loaded and dumped again")
                self._same_answers(algorithm, algorithm.load(data), step.kept, step.now, "loaded")
        for nonsense in (b"\xff", b"not a state"):
            same(_raised(algorithm.load, nonsense), ValueError, f"loading {nonsense!r}")

    def test_numbers_are_whole(self, algorithm: Algorithm) -> None:
        """In answers and in states, whatever made them: a fraction is exact only up to 2**53."""
        for step in self._steps(algorithm):
            charged = algorithm.charge(step.state, step.now, max(1, step.cost))
            back = algorithm.give_back(charged, step.now, _consumed(step), max(1, step.cost))
            for what in (answer(step.decision), step.kept, charged, back):
                same(_fractions(what), [], f"numbers that are not whole in {what!r}")

    def test_time_never_runs_backwards(self, algorithm: Algorithm) -> None:
        """A time before the state's last one counts as that one; durations are told from the caller's."""
        for step in self._steps(algorithm, back=False):
            if not (step.decision.allowed and step.cost):
                continue
            for back in (1, algorithm.period // 7, 3 * algorithm.period):
                for cost in _costs(algorithm):
                    now = algorithm.decide(step.kept, step.now, cost)[1]
                    then = algorithm.decide(step.kept, step.now - back, cost)[1]
                    same((then.allowed, then.remaining), (now.allowed, now.remaining), f"{back} us back")
                    same(then.retry_us, now.retry_us and now.retry_us + back, f"retry_us told from {back} us back")
                    same(then.reset_us, now.reset_us and now.reset_us + back, f"reset_us told from {back} us back")

    def test_states_are_never_changed_in_place(self, algorithm: Algorithm) -> None:
        """What was asked of an old state has the same answer after all that came later."""
        steps = list(self._steps(algorithm))
        for step in steps:
            again = algorithm.decide(step.state, step.now, step.cost)[1]
            same(answer(again), answer(step.decision), "the same question to the same state, later")

    # -- traces --------------------------------------------------------------------------------------------

    def _steps(self, algorithm: Algorithm, back: bool = True, charges: bool = True) -> Iterator[Step]:
        for seed in _SEEDS:
            yield from self._trace(algorithm, random.Random(seed), back, charges)  # noqa: S311 - the same every time

    def _trace(self, algorithm: Algorithm, chance: random.Random, back: bool, charges: bool) -> Iterator[Step]:
        state: Any = None
        now = latest = START - chance.randrange(algorithm.period)
        for _ in range(_STEPS):
            cost = chance.choice((0, 1, 1, 1, *_costs(algorithm), chance.randint(0, algorithm.limit)))
            kept, decision = algorithm.decide(state, now, cost)
            step = Step(state, now, cost, kept, decision, latest)
            yield step
            state = self._changed(algorithm, step, chance, charges)
            latest = max(latest, now)
            now = max(0, now + _pause(algorithm, decision, chance, back))

    def _changed(self, algorithm: Algorithm, step: Step, chance: random.Random, charges: bool) -> Any:
        """The state to go on with: now and then charged or given back to."""
        if step.cost and step.decision.allowed and chance.random() < 0.1:
            return algorithm.give_back(step.kept, step.now, _consumed(step), chance.randint(1, step.cost))
        if charges and chance.random() < 0.1:
            return algorithm.charge(step.kept, step.now, chance.randint(1, algorithm.limit))
        return step.kept

    def _same_answers(self, algorithm: Algorithm, one: Any, other: Any, now: int, what: str) -> None:
        for cost in (0, *_costs(algorithm)):
            got, expected = (answer(algorithm.decide(state, now, cost)[1]) for state in (one, other))
            same(got, expected, f"{what}, cost {cost} at {now}, states {one!r} and {other!r}")

    def _returns(self, algorithm: Algorithm, step: Step) -> bool:
        """Whether a hit can be given back whole: in a queue it can where its end is known to the microsecond."""
        return not algorithm.delays or algorithm.amount <= algorithm.period


def _costs(algorithm: Algorithm) -> tuple[int, ...]:
    return (1, max(1, algorithm.limit // 3), algorithm.limit, algorithm.limit + 1)


def _pause(algorithm: Algorithm, decision: Decision, chance: random.Random, back: bool) -> int:
    """How long until the next step: mostly short, often the very moment that matters."""
    period, kind = algorithm.period, chance.random()
    if kind < 0.3:
        return chance.randrange(max(1, 2 * period // algorithm.amount))
    if kind < 0.5:
        return (decision.retry_us or 0) - chance.choice((0, 0, 1)) if decision.retry_us else 0
    if kind < 0.6:
        return decision.reset_us - chance.choice((0, 1)) if decision.reset_us else 0
    if kind < 0.7 and back:
        return -chance.randrange(period)
    return chance.randrange(2 * period) if kind < 0.85 else 0


def _consumed(step: Step) -> Charge:
    return Charge(step.decision.at_us, step.cost, step.decision.delay_us)


def _fractions(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [found for part in value for found in _fractions(part)]
    return [value] if isinstance(value, float) else []


def _raised(call: Callable[..., Any], *arguments: Any) -> type[Exception] | None:
    try:
        call(*arguments)
    except Exception as error:
        return type(error)
    return None
