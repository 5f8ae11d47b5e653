"""The compliance suite finds mistakes: a store with one mistake does not pass."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tables import each

from ratelimit_mw import ConfigError, Decision
from ratelimit_mw.clock import now_us
from ratelimit_mw.decision import Correction, Hit, Limit
from ratelimit_mw.stores import Store, decide_all
from ratelimit_mw.testing import StoreCompliance
from ratelimit_mw.testing.store_suite import WAYS


class PlainStore(Store):
    """A dictionary under a lock, without expiry: a correct store."""

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
        return change.apply_to(state, now)

    def forget(self, keys: Any) -> None:
        for key in keys:
            self.states.pop(self.name(key), None)


class ConsumesOnPeek(PlainStore):
    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return super().apply(hits, now)


class ConsumesRejectedRequests(PlainStore):
    def decide(self, hits: Sequence[Hit], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
        decided = [decide_all([hit], [self.read(hit, now)], now) for hit in hits]
        return [d for ds, _ in decided for d in ds], [w for _, ws in decided for w in ws]


class ShadowRejects(PlainStore):
    def decide(self, hits: Sequence[Hit], now: int) -> tuple[list[Decision], list[tuple[Hit, Any]]]:
        decisions, writes = super().decide(hits, now)
        return decisions, writes if all(d.allowed for d in decisions) else []


def naming(name: Callable[[str], str]) -> type[Store]:
    """Return a store that keeps keys under other names."""
    return type("Wrong", (PlainStore,), {"name": lambda _, key: name(key)})


class ExpiresEarly(PlainStore):
    """Keys expire 100 ms early."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, int] = {}

    def read(self, hit: Hit, now: int) -> Any:
        return super().read(hit, now) if now < self.ends.get(hit.key, 0) else None

    def write(self, hit: Hit, state: Any, now: int) -> None:
        super().write(hit, state, now)
        self.ends[hit.key] = now + hit.limit.decide(state, now, 0)[1].reset_us - 100_000


class ExpiresCharges(ExpiresEarly):
    """Keys expire after the lifetime of their algorithm, even when more was charged."""

    def write(self, hit: Hit, state: Any, now: int) -> None:
        PlainStore.write(self, hit, state, now)
        self.ends[hit.key] = now + hit.limit.algorithm.lifetime + 1


def refunds_too_much(self: PlainStore, change: Correction, state: Any, now: int) -> Any:
    return None if change.consumed is not None else PlainStore.changed(self, change, state, now)


class LocksOneHandle(PlainStore):
    """Each handle has a lock of its own."""

    def another(self) -> PlainStore:
        second = LocksOneHandle()
        second.states = self.states
        return second

    def write(self, hit: Hit, state: Any, now: int) -> None:
        time.sleep(0.0001)  # runs the other handle, as I/O does
        super().write(hit, state, now)


class AwaitsBeforeWriting(PlainStore):
    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        at = self.time(now)
        decisions, writes = self.decide(hits, at)
        await asyncio.sleep(0)
        for hit, state in writes if consume else ():
            self.write(hit, state, at)
        return decisions


class AsyncHasOwnState(PlainStore):
    def __init__(self) -> None:
        super().__init__()
        self.other: PlainStore | None = None

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        self.other = self.other or PlainStore()
        return self.other.apply(hits, now, consume)


DECISIONS = "test_decisions_equal_those_of_the_pure_functions"
MISTAKES: dict[str, list[type[Store]]] = {
    DECISIONS: [
        ConsumesOnPeek,
        ConsumesRejectedRequests,
        ShadowRejects,
        type("RefundsTooMuch", (PlainStore,), {"changed": refunds_too_much}),
        type("ForgetsAllKeys", (PlainStore,), {"forget": lambda self, keys: self.states.clear() if [*keys] else None}),
    ],
    "test_hostile_keys_are_distinct": [
        naming(lambda key: key[:250]),
        naming(str.strip),
        naming(lambda key: key.encode("utf-8", "replace").decode()),
    ],
    "test_a_given_time_overrides_the_clock_of_the_store": [
        type("IgnoresGivenTime", (PlainStore,), {"time": lambda *_: now_us()}),
    ],
    "test_no_key_expires_early": [ExpiresEarly],
    "test_a_charge_beyond_the_limit_is_kept": [ExpiresCharges],
    "test_a_race_of_two_handles_is_exact": [LocksOneHandle, AwaitsBeforeWriting],
    "test_two_handles_share_their_state": [AsyncHasOwnState],
}


def store_suite(store: type[Store]) -> StoreCompliance:
    class Suite(StoreCompliance):
        def make_store(self) -> Store:
            return store()

        def make_second(self, store: Any) -> Store:
            second: PlainStore = store.another()
            return second

    return Suite()


def failures(store: type[Store], test: str) -> list[AssertionError]:
    """Return how one test of the suite fails with a store, blocking and awaited."""
    found = []
    for way in WAYS:
        try:
            getattr(store_suite(store), test)(way)
        except AssertionError as error:
            found.append(error)
    return found


@each(("test", "store"), [(test, store) for test, stores in MISTAKES.items() for store in stores])
def test_suite_finds_the_mistake_of_a_store(test: str, store: type[Store]) -> None:
    """Each mistake fails its test, with a message that shows both values."""
    found = failures(store, test)
    assert found
    assert all("got" in str(error) and "expected" in str(error) for error in found)
    assert all(error.__notes__[0].startswith("with the algorithm ") for error in found if hasattr(error, "__notes__"))


@each("test", MISTAKES)
def test_suite_passes_a_correct_store(test: str) -> None:
    """The same tests pass for the store from which the others are derived."""
    assert failures(PlainStore, test) == []


def test_suite_ends_with_the_error_of_a_store_that_keeps_no_limit() -> None:
    """It looks for the largest amount that the store keeps."""

    class KeepsNone(PlainStore):
        def check(self, limit: Limit) -> None:
            raise ConfigError(f"{limit} is too large")

    with pytest.raises(ConfigError, match=r"1/366d.* is too large"):
        failures(KeepsNone, "test_the_largest_numbers_are_exact")
