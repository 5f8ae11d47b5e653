"""The memory store keeps each state until it expires, and frees it afterwards."""

import gc
import itertools
import tracemalloc
from pathlib import Path

import pytest
from memory_rate import ALGORITHMS, clock_of, hit, limiter, store_of

from ratelimit_mw import Limiter
from ratelimit_mw.stores.memory import store as store_module
from ratelimit_mw.stores.memory.snapshot import read

# -- expiry ------------------------------------------------------------------------------------------------


def traced() -> int:
    """Return the memory that the package holds. Threads of other tests may hold more."""
    traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/ratelimit_mw/*")]).traces
    return sum(trace.size for trace in traces)


def sizes(algorithm: str, max_keys: int) -> list[int]:
    """Return the memory with one client, with 1,000 of them, and when they have expired."""
    rate = limiter("3/minute", max_keys, algorithm=algorithm)
    hit(rate, "first")
    gc.collect()
    found = [traced()]
    for i in range(1000):
        hit(rate, f"user {i}")
    found.append(traced())
    for _ in range(3):
        clock_of(rate).advance(200)
        hit(rate, "last")
    gc.collect()
    found.append(traced())
    assert len(store_of(rate)) == 1
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("max_keys", [1_000_000, 500])
def test_hits_free_an_expired_store(algorithm: str, max_keys: int) -> None:
    """Hits free keys and memory without a thread."""
    gc.freeze()  # the objects of all other tests are not collected each time
    tracemalloc.start()
    try:
        sizes(algorithm, max_keys)  # the first time, a measurement of coverage notes each line
        empty, full, memory = sizes(algorithm, max_keys)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    assert full - empty > 80_000
    assert memory - empty < 0.05 * (full - empty)


def test_expired_keys_are_freed_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No single hit frees all keys."""
    monkeypatch.setattr(store_module, "_FREED_AT_ONCE", 500)
    rate = limiter("3/minute", algorithm="fixed-window")
    for i in range(1_200):
        hit(rate, f"{i}")
    clock_of(rate).advance(500)
    lengths = []
    for _ in range(4):
        hit(rate, "x")
        lengths.append(len(store_of(rate)))
    assert lengths == [701, 201, 1, 1]


def test_a_clock_far_in_the_future_expires_all_states() -> None:
    """A clock that jumps by years allows one fresh quota."""
    rate = limiter("3/minute")
    for i in range(50):
        hit(rate, f"{i}")
    clock_of(rate).set(4_000_000_000.0)
    assert [hit(rate, "0") for _ in range(4)] == [True, True, True, False]
    assert len(store_of(rate)) == 1
    clock_of(rate).advance(200)
    assert hit(rate, "0")
    assert len(store_of(rate)) == 1


def test_a_backward_clock_frees_no_client() -> None:
    """A rejected client stays rejected for the length of the jump."""
    rate = limiter("3/minute")
    assert [hit(rate, "a") for _ in range(4)] == [True, True, True, False]
    for _ in range(20):
        clock_of(rate).advance(-40)
        assert not hit(rate, "a")


def test_a_clock_that_goes_ahead_and_back_may_lose_counts() -> None:
    """Within a span nothing is lost. After it, a hit of another client frees the states, even on a given clock."""
    for ahead, allowed in (59, False), (180, True):
        rate = limiter("3/minute", algorithm="fixed-window")
        hit(rate, "a", 3)
        clock_of(rate).advance(ahead)
        hit(rate, "another client")
        clock_of(rate).advance(-ahead)
        assert hit(rate, "a") is allowed


# -- overdue -------------------------------------------------------------------------------------------------


def overdue(rate: Limiter, folder: Path) -> list[bytes]:
    """Return the overdue keys of a store, as it saves them."""
    store_of(rate).save(folder / "saved")
    saved = read(folder / "saved")
    assert saved is not None
    return [key for each in saved.generations.values() for key in each.overdue]


@pytest.mark.parametrize("max_keys", [1_000_000, 1], ids=["own", "shared"])
@pytest.mark.parametrize("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_an_overdue_key_is_kept_until_it_has_drained(algorithm: str, max_keys: int, tmp_path: Path) -> None:
    """A bucket is charged a hundred times its size; tables rotate in the meantime."""
    rate = limiter("60/minute burst 10", max_keys, algorithm=algorithm)
    hit(rate, "other client")
    hit(rate, "debtor")  # a state that the old table still has when the debt is written
    clock_of(rate).advance(10)
    verdict = rate.hit({"user": "debtor"})
    rate.settle(verdict, 1000)
    for _ in range(99):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")
        hit(rate, "other client")
    clock_of(rate).advance(2)
    assert hit(rate, "debtor")
    for _ in range(3):
        clock_of(rate).advance(30)
        hit(rate, "other client")
    assert len(store_of(rate)) == 1
    assert not overdue(rate, tmp_path)


def test_an_overdue_key_stays_overdue_after_a_partial_refund() -> None:
    """The key may have its own state by then."""
    rate = limiter("60/minute burst 10", max_keys=1, algorithm="token-bucket")
    first = rate.hit({"user": "first"})
    verdict = rate.hit({"user": "debtor"})
    rate.settle(verdict, 1000)
    rate.refund(first)
    rate.settle(verdict, 500)
    for _ in range(49):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")


def test_overdue_keys_are_bounded(tmp_path: Path) -> None:
    rate = limiter("60/minute burst 10", max_keys=100, algorithm="token-bucket")
    for i in range(1_000):
        rate.settle(rate.hit({"user": f"{i}"}, 1), 1000)
    assert sum(b"user=" in key for key in overdue(rate, tmp_path)) == 100
    for i in range(100):
        rate.reset("r", {"user": f"{i}"})
    assert len(store_of(rate)) == 0
    left = overdue(rate, tmp_path)
    assert len(left) > 100, "those of the states that are shared"
    assert not any(b"user=" in key for key in left)


def test_an_overdue_key_moves_to_a_longer_span() -> None:
    """Another limit of the same prefix has a longer lifetime."""
    rate = limiter("60/minute burst 10", algorithm="token-bucket", per_key={"vip": "60/minute burst 600"})
    rate.settle(rate.hit({"user": "debtor"}), 100)
    hit(rate, "vip", 600)
    for _ in range(9):
        clock_of(rate).advance(10)
        assert not hit(rate, "debtor")
    clock_of(rate).advance(2)
    assert hit(rate, "debtor")


def test_a_state_of_the_far_future_ends_at_the_first_look() -> None:
    """The clock may have been in another year. A state within a period and a day still counts."""
    for algorithm, limits, max_keys in itertools.product(ALGORITHMS, ("3/minute", "3/minute; 3/hour"), (100, 1)):
        rate = limiter(limits, max_keys, algorithm=algorithm)
        clock = clock_of(rate)
        clock.set(1_800_000_000.0)
        hit(rate, "other")
        for user, far in ("ann", 3_000_000_000.0), ("bob", 1_800_080_000.0):
            clock.set(far)
            hit(rate, user, 3)
        clock.set(1_800_000_000.0)
        found = [hit(rate, "bob"), hit(rate, "bob"), hit(rate, "ann"), hit(rate, "ann", 3), hit(rate, "ann")]
        assert found == [False, False, False, True, False], (algorithm, limits, max_keys)
