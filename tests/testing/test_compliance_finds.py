"""The compliance suites find what they are for: stores and algorithms with one mistake each do not pass."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ratelimit_mw import Decision, Quota
from ratelimit_mw.algorithms import Algorithm
from ratelimit_mw.algorithms.bucket import TokenBucket
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.clock import now_us
from ratelimit_mw.decision import Correction, Hit
from ratelimit_mw.stores import Store, decide_all
from ratelimit_mw.testing import AlgorithmCompliance, StoreCompliance, StoreSmoke


class PlainStore(Store):
    """A dictionary under a lock that forgets nothing: without a mistake."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.lock = threading.Lock()

    def name(self, key: str) -> str:
        return key

    def another(self) -> "PlainStore":
        return self

    def time(self, now: int | None) -> int:
        return now_us() if now is None else now

    def read(self, hit: Hit, now: int) -> Any:
        return self.states.get(self.name(hit.key))

    def decide(self, hits: Sequence[Hit], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
        return decide_all(hits, [self.read(hit, now) for hit in hits], now)

    def write(self, hit: Hit, state: Any, now: int) -> None:
        self.states[self.name(hit.key)] = state

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        with self.lock:
            at = self.time(now)
            decisions, writes = self.decide(hits, at)
            for hit, state in writes if consume else ():
                self.write(hit, state, at)
            return decisions

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        with self.lock:
            at = self.time(now)
            for change in changes:
                hit = Hit(change.limit, change.key, change.cost)
                self.write(hit, self.changed(change, self.read(hit, at), at), at)
            return [at] * len(changes)

    def changed(self, change: Correction, state: Any, now: int) -> Any:
        if change.consumed is None:
            return change.limit.algorithm.charge(state, now, change.cost)
        return change.limit.algorithm.give_back(state, now, change.consumed, change.cost)

    def forget(self, keys: Any) -> None:
        for key in keys:
            self.states.pop(self.name(key), None)


class PeekSpends(PlainStore):
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return super().apply(hits, now)


class SpendsWhatOthersRefuse(PlainStore):
    def decide(self, hits: Sequence[Hit], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
        decided = [decide_all([hit], [self.read(hit, now)], now) for hit in hits]
        return [d for ds, _ in decided for d in ds], [w for _, ws in decided for w in ws]


class ShadowsRefuse(PlainStore):
    def decide(self, hits: Sequence[Hit], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
        decisions, writes = super().decide(hits, now)
        return decisions, writes if all(d.allowed for d in decisions) else []


class CutsKeys(PlainStore):
    def name(self, key: str) -> str:
        return key[:250]


class StripsKeys(PlainStore):
    def name(self, key: str) -> str:
        return key.strip()


class ReplacesSurrogates(PlainStore):
    def name(self, key: str) -> str:
        return key.encode("utf-8", "replace").decode()


class OwnClock(PlainStore):
    def time(self, now: int | None) -> int:
        return now_us()


class ForgetsEarly(PlainStore):
    """Keys end a tenth of a second before their time."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, int] = {}

    def read(self, hit: Hit, now: int) -> Any:
        return super().read(hit, now) if now < self.ends.get(hit.key, 0) else None

    def write(self, hit: Hit, state: Any, now: int) -> None:
        super().write(hit, state, now)
        self.ends[hit.key] = now + hit.limit.decide(state, now, 0)[1].reset_us - 100_000


class ForgetsDebts(ForgetsEarly):
    """Keys end after their algorithm's lifetime, whatever is owed."""

    def write(self, hit: Hit, state: Any, now: int) -> None:
        PlainStore.write(self, hit, state, now)
        self.ends[hit.key] = now + hit.limit.algorithm.lifetime + 1


class GivesBackBlindly(PlainStore):
    def changed(self, change: Correction, state: Any, now: int) -> Any:
        return None if change.consumed is not None else super().changed(change, state, now)


class ForgetsEverything(PlainStore):
    def forget(self, keys: Any) -> None:
        if list(keys):
            self.states.clear()


class Unlocked(PlainStore):
    class _Nothing:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def __init__(self) -> None:
        super().__init__()
        self.lock = self._Nothing()  # type: ignore[assignment]

    def write(self, hit: Hit, state: Any, now: int) -> None:
        time.sleep(0)  # lets another thread in, as any I/O does
        super().write(hit, state, now)


class LocksAlone(PlainStore):
    """Each handle has a lock, and none has one that holds for the other."""

    def another(self) -> PlainStore:
        second = LocksAlone()
        second.states = self.states
        return second

    def write(self, hit: Hit, state: Any, now: int) -> None:
        time.sleep(0.0001)  # lets the other handle in, as any I/O does
        super().write(hit, state, now)


class AwaitsBetween(PlainStore):
    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        at = self.time(now)
        decisions, writes = self.decide(hits, at)
        await asyncio.sleep(0)
        for hit, state in writes if consume else ():
            self.write(hit, state, at)
        return decisions


class AwaitsElsewhere(PlainStore):
    def __init__(self) -> None:
        super().__init__()
        self.other: PlainStore | None = None

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self.other = self.other or PlainStore()
        return self.other.apply(hits, now, consume)


STORES = {
    PeekSpends: "test_a_peek_answers_as_a_hit_would_and_consumes_nothing",
    SpendsWhatOthersRefuse: "test_all_or_nothing",
    ShadowsRefuse: "test_a_shadow_rejects_nobody",
    CutsKeys: "test_hostile_keys_stay_apart",
    StripsKeys: "test_hostile_keys_stay_apart",
    ReplacesSurrogates: "test_hostile_keys_stay_apart",
    OwnClock: "test_a_given_time_rules",
    ForgetsEarly: "test_nothing_is_forgotten_early",
    ForgetsDebts: "test_charging_goes_beyond_the_limit_and_is_remembered",
    GivesBackBlindly: "test_giving_back_too_late_gives_nothing",
    ForgetsEverything: "test_forgetting_makes_fresh",
    Unlocked: "test_a_race_on_one_key_is_exact",
    LocksAlone: "test_a_race_of_two_handles_is_exact",
    AwaitsBetween: "test_a_race_on_one_key_is_exact",
    AwaitsElsewhere: "test_two_handles_share_their_state",
}


def plays(suite: Any, name: str, **chosen: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """One test of a suite with everything that it is parametrized with."""
    test = getattr(suite, name)
    names = [parameter for parameter in inspect.signature(test).parameters if parameter in chosen]
    calls: list[dict[str, Any]] = [{}]
    for parameter in names:
        calls = [{**call, parameter: value} for call in calls for value in chosen[parameter]]
    return (lambda call=call: test(**call) for call in calls)  # type: ignore[misc]


def complaints(suite: Any, name: str, **chosen: Sequence[Any]) -> list[str]:
    found = []
    for play in plays(suite, name, **chosen):
        try:
            play()
        except AssertionError as error:
            found.append(str(error))
    return found


def store_suite(store: type[Store]) -> StoreCompliance:
    class Suite(StoreCompliance):
        def make_store(self) -> Store:
            return store()

        def make_second(self, store: Any) -> Store:
            second: PlainStore = store.another()
            return second

    return Suite()


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
def test_a_store_with_a_mistake_is_found(store: type[Store]) -> None:
    """Each mistake fails the test that is about it, with a message that shows both sides."""
    suite = store_suite(store)
    found = complaints(suite, STORES[store], way=["sync", "async"], spec=suite.algorithms)
    assert found
    assert all("got" in message and "expected" in message for message in found)


@pytest.mark.parametrize("name", sorted(set(STORES.values())))
def test_a_store_without_a_mistake_passes(name: str) -> None:
    """The same tests have nothing to say about the store that the mistakes were made in."""
    suite = store_suite(PlainStore)
    assert complaints(suite, name, way=["sync", "async"], spec=suite.algorithms) == []


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


class PromisesMore(SlidingWindowCounter):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.remaining += decision.remaining > 2
        return kept, decision


class ResetsEarly(SlidingWindowCounter):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.reset_us = min(decision.reset_us, self.period)
        return kept, decision


class DiesEarly(SlidingWindowCounter):
    @property
    def lifetime(self) -> int:
        return self.period


class GivesBackAlways(TokenBucket):
    def give_back(self, state: Any, now: int, consumed: Any, cost: int) -> Any:
        return super().give_back(state, now, consumed._replace(at_us=now), cost)


class NeverGivesBack(TokenBucket):
    def give_back(self, state: Any, now: int, consumed: Any, cost: int) -> Any:
        return state


class ChargesUpToTheLimit(FixedWindow):
    def charge(self, state: Any, now: int, cost: int) -> Any:
        return super().charge(state, now, 1)


class ChargesFractions(FixedWindow):
    def charge(self, state: Any, now: int, cost: int) -> Any:
        end, count = super().charge(state, now, cost)
        return end, float(count)


class AnswersFractions(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.reset_us = float(decision.reset_us)  # type: ignore[assignment]
        return kept, decision


class LoadsAnything(FixedWindow):
    def load(self, data: bytes) -> Any:
        return super().load(data) if data[:1].isdigit() else (0, 0)


class LosesNumbers(TokenBucket):
    def dump(self, state: Any) -> bytes:
        return super().dump((state[0], state[1], 0))


class GoesBack(TokenBucket):
    def _drained(self, state: tuple[int, int, int], now: int) -> tuple[int, int, int]:
        return (now, *state[1:]) if now < state[0] else super()._drained(state, now)


class ChangesInPlace(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        if isinstance(state, list) and kept is not state:
            state[:] = kept
            return state, decision
        return kept if kept is state else list(kept), decision


class SaysWhenItNeverFits(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        kept, decision = super().decide(state, now, cost)
        decision.retry_us = self.period if decision.retry_us is None else decision.retry_us
        return kept, decision


class AllowsOneMore(FixedWindow):
    def decide(self, state: Any, now: int, cost: int) -> tuple[Any, Decision]:
        return super().decide(state and (state[0], max(0, state[1] - 1)), now, cost)


class BreaksKeys(FixedWindow):
    @property
    def variant(self) -> str:
        return "a|b"


ALGORITHMS = {
    CopiesState: "test_rejected_and_looking_leave_the_state_alone",
    RetriesEarly: "test_retry_after_is_exact",
    RetriesLate: "test_retry_after_is_exact",
    PromisesMore: "test_remaining_is_what_more_fits",
    ResetsEarly: "test_reset_after_means_fresh",
    DiesEarly: "test_lifetime_bounds_reset_after",
    GivesBackAlways: "test_giving_back_later_admits_nothing_extra",
    NeverGivesBack: "test_giving_back_at_once_undoes_the_hit",
    ChargesUpToTheLimit: "test_charge_is_a_hit_without_asking",
    ChargesFractions: "test_numbers_are_whole",
    AnswersFractions: "test_numbers_are_whole",
    LoadsAnything: "test_states_survive_as_bytes",
    LosesNumbers: "test_states_survive_as_bytes",
    GoesBack: "test_time_never_runs_backwards",
    ChangesInPlace: "test_states_are_never_changed_in_place",
    SaysWhenItNeverFits: "test_a_cost_over_the_limit_never_fits",
    AllowsOneMore: "test_a_fresh_state_allows_the_limit_and_no_more",
    BreaksKeys: "test_names_and_sizes_mean_something",
}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.__name__)
def test_an_algorithm_with_a_mistake_is_found(algorithm: type[Algorithm]) -> None:
    """Each mistake fails the test that is about it."""
    made = [algorithm(Quota.parse(text)) for text in AlgorithmCompliance.quotas]
    assert complaints(AlgorithmCompliance(), ALGORITHMS[algorithm], algorithm=made)


def test_every_test_about_algorithms_finds_something() -> None:
    """No test of the suite is without a mistake here that it finds."""
    tests = {name for name in dir(AlgorithmCompliance) if name.startswith("test_")}
    assert tests == set(ALGORITHMS.values())


def test_smoke_runs_each_test_once_and_covers_every_algorithm_in_both_ways() -> None:
    """The short suite leaves out no clause of the contract, no algorithm, and neither kind of method."""
    suite, tests = StoreSmoke(), [name for name in dir(StoreSmoke) if name.startswith("test_")]
    ways, specs = set(), []
    for name in tests:
        function = getattr(StoreSmoke, name)
        metafunc = _Metafunc(function, [*inspect.signature(function).parameters])
        suite.pytest_generate_tests(metafunc)
        (way,) = metafunc.values["way"]
        ways.add(way)
        specs += metafunc.values.get("spec", [])
        assert all(len(values) == 1 for values in metafunc.values.values())
    assert tests == [name for name in dir(StoreCompliance) if name.startswith("test_")]
    assert ways == {"sync", "async"}
    assert [spec for spec in suite.algorithms if spec not in specs] == []


class _Metafunc:
    """The part of pytest's ``Metafunc`` that a suite uses."""

    def __init__(self, function: Any, fixturenames: list[str]) -> None:
        self.function, self.fixturenames = function, fixturenames
        self.values: dict[str, list[Any]] = {}

    def parametrize(self, name: str, values: list[Any], ids: Any = None) -> None:
        self.values[name] = values
