"""The memory store is exact and bounded under threads and floods, and starts no thread."""

import gc
import itertools
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_rate import ALGORITHMS, clock_of, hit, limiter, store_of

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.decision import Hit
from ratelimit_mw.stores import MemoryStore
from ratelimit_mw.stores.memory import store as store_module
from ratelimit_mw.testing import ManualClock
from ratelimit_mw.testing.store_suite import limit_of

# -- threads -----------------------------------------------------------------------------------------------


def together(work: Callable[[], Any], threads: int = 8) -> list[Any]:
    """Return the results of the same work in all threads, which start at the same time."""
    ready = threading.Barrier(threads)

    def run(_: int) -> Any:
        ready.wait()
        return work()

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def test_an_algorithm_that_fails_leaves_the_store_free() -> None:
    """That of an application may raise any error, and no request could be decided after it."""
    store, limit = MemoryStore(), limit_of("5/hour")
    limit.decide = Mock(side_effect=ZeroDivisionError)
    one = Hit(limit, limit.prefix + "ann", 1)
    for call in (lambda: store.apply([one]), lambda: store._apply_one(*one)):
        with pytest.raises(ZeroDivisionError):
            call()
        assert not store._lock.locked()


@pytest.mark.usefixtures("hasty")
def test_threads_on_one_key_get_exactly_the_limit() -> None:
    """Of 1,600 hits by eight threads 500 are allowed, with one limit and with two."""
    for algorithm, limits in itertools.product(ALGORITHMS, ("500/hour", "500/hour; 9000/day")):
        rate = limiter(limits, algorithm=algorithm)
        passed = together(lambda rate=rate: sum(hit(rate, "one") for _ in range(200)))
        assert sum(passed) == 500, (algorithm, limits)


@pytest.mark.usefixtures("hasty")
def test_threads_refund_exactly_once() -> None:
    """Hits and refunds from eight threads leave the key unchanged."""
    rate = limiter("10/hour")

    def work() -> int:
        passed = 0
        for _ in range(100):
            verdict = rate.hit({"user": "one"})
            passed += verdict.allowed
            rate.refund(verdict)
            rate.refund(verdict)
        return passed

    assert sum(together(work)) > 0
    assert len(store_of(rate)) == 0
    assert rate.peek({"user": "one"}, cost=0).decisions[0].remaining == 10


@pytest.mark.usefixtures("hasty")
def test_the_bound_holds_under_threads() -> None:
    """Eight threads with their own keys never exceed max_keys or a limit."""
    rate = limiter("1/hour", max_keys=300)
    names = iter(range(10**9))

    def work() -> list[bool]:
        return [hit(rate, f"{next(names)}") for _ in range(200)]

    together(work)
    assert len(store_of(rate)) == 300
    assert not any(hit(rate, f"{i}") for i in range(1600))


# -- the bound ---------------------------------------------------------------------------------------------


def test_no_thread_is_started() -> None:
    """Construction, use and expiry of the store start no thread."""
    before = set(threading.enumerate())
    rate = limiter()
    for i in range(100):
        hit(rate, f"{i}")
        clock_of(rate).advance(40)
    assert set(threading.enumerate()) <= before, "a thread of an earlier test may end meanwhile"


def test_a_flood_changes_no_client() -> None:
    """A rejected client stays rejected, also one that was new to a full store, and another keeps its own state."""
    rate = limiter("3/hour", max_keys=1000)
    assert [hit(rate, "greedy") for _ in range(4)] == [True, True, True, False]
    assert hit(rate, "modest")
    for i in range(1000):
        hit(rate, f"known {i}")
    assert [hit(rate, "late") for _ in range(4)] == [True, True, True, False]
    for i in range(20_000):
        hit(rate, f"stranger {i}")
    assert len(store_of(rate)) == 1000
    assert [hit(rate, "greedy"), hit(rate, "late")] == [False, False]
    assert [hit(rate, "modest") for _ in range(3)] == [True, True, False]


def test_few_new_clients_are_rejected_in_a_full_store() -> None:
    """Of 1,000 new keys in a full store nearly all get their full limit, and none gets more."""
    rate = limiter("3/hour", max_keys=10)
    for i in range(10):
        hit(rate, f"known {i}")
    passed = [sum(hit(rate, f"new {i}") for _ in range(5)) for i in range(1000)]
    assert max(passed) == 3
    assert sum(passed) > 2900


def test_a_flood_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many new keys use almost no more memory."""
    monkeypatch.setattr(store_module, "_SHARED_STATES", 1 << 10)
    rate = limiter("3/hour", max_keys=2000)
    names = (f"stranger {i}" for i in range(10**9))
    for _ in range(10_000):  # enough to use nearly all of the shared states
        hit(rate, next(names))
    gc.freeze()  # the objects of all other tests are not collected each time
    tracemalloc.start()
    try:
        for _ in range(10_000):
            hit(rate, next(names))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    # These writes replace what was there before the measurement.
    assert grown < (2000 + (1 << 10)) * 300
    assert len(store_of(rate)) == 2000


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 0, 1, 20, 45, 61, 200]), st.sampled_from("hhhhrs")),
        max_size=60,
    ),
    st.sampled_from(["fixed-window", "sliding-window-log", "token-bucket"]),
)
def test_no_key_exceeds_its_limit_in_own_or_shared_states(max_keys: int, steps: list[Any], algorithm: str) -> None:
    """A small store never allows a hit that a large store rejects, with refunds, settling and moved states.

    Every key of the large store has its own state. The large store consumes what the small one allows.
    """
    small = limiter("4/minute", max_keys, algorithm=algorithm)
    large = limiter("4/minute", algorithm=algorithm)
    allowed: dict[str, list[Any]] = {}
    for user, pause, action in steps:
        name = f"{user}"
        for rate in (small, large):
            clock_of(rate).advance(pause)
        if action == "h":
            verdict = small.hit({"user": name})
            if verdict.allowed:
                twin = large.hit({"user": name})
                assert twin.allowed
                allowed.setdefault(name, []).append((verdict, twin))
        elif allowed.get(name):
            verdict, twin = allowed[name].pop()
            for rate, each in ((small, verdict), (large, twin)):
                rate.refund(each) if action == "r" else rate.settle(each, 3)
        assert len(store_of(small)) <= max_keys


def test_reset_of_a_key_that_shares_a_state() -> None:
    rate = limiter("1/hour", max_keys=1)
    assert [hit(rate, user) for user in ("own", "shared", "own", "shared")] == [True, True, False, False]
    rate.reset("r", {"user": "shared"})
    rate.reset("r", {"user": "never seen"})
    assert [hit(rate, user) for user in ("own", "shared", "shared")] == [False, True, False]
    rate.reset("r", {"user": "own"})
    assert not hit(rate, "shared"), "its cost stays when there is room for a state of its own"


# -- limits that share keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["short first", "long first"])
@pytest.mark.parametrize("max_keys", [1_000_000, 1])
def test_limits_of_one_prefix_share_their_keys(order: str, max_keys: int) -> None:
    """Limits with different lifetimes use the same keys."""
    burst = {"name": "token-bucket"}
    plans = {"free": "60/minute burst 10", "pro": "60/minute burst 600"}
    rate = limiter("60/minute burst 10", max_keys, algorithm=burst, per={"plan": plans})
    users = ["a", "b"] if order == "short first" else ["b", "a"]
    plan_of = {"a": "free", "b": "pro"}
    for user in users:
        assert rate.hit({"user": user, "plan": plan_of[user]}, 10 if user == "a" else 600).allowed
    clock_of(rate).advance(5)
    assert [rate.peek({"user": u, "plan": plan_of[u]}, 0).decisions[0].remaining for u in "ab"] == [5, 5]
    # After the upgrade, "a" keeps its cost. After the downgrade, "b" exceeds its limit until that cost expires.
    assert rate.peek({"user": "a", "plan": "pro"}, 0).decisions[0].remaining == 595
    for _ in range(5):
        clock_of(rate).advance(100)
        assert not rate.hit({"user": "b", "plan": "free"}).allowed
    clock_of(rate).advance(100)
    assert rate.hit({"user": "b", "plan": "free"}).allowed


def test_a_changed_amount_keeps_its_count_on_either_side_of_32() -> None:
    """An amount that crosses 32 is counted in another way, so it starts fresh. The old count stays under its key."""
    for before, after, remaining in (20, 30, 25), (30, 20, 15), (32, 33, 33), (33, 32, 32), (33, 40, 35):
        clock, store = ManualClock(1_767_268_801), MemoryStore()  # a second after the start of an hour
        rules = ([Rule(name="api", key=["user"], limits=f"{amount}/hour")] for amount in (before, after))
        old, new = (Limiter(each, store, clock) for each in rules)
        assert all(hit(old, "one") for _ in range(5))
        found = [each.peek({"user": "one"}, cost=0).decisions[0].remaining for each in (new, old)]
        assert found == [remaining, before - 5], (before, after)


def test_the_table_of_limits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reloaded settings do not grow the table, and no key is lost. The limits of old settings are freed."""
    monkeypatch.setattr(store_module, "_MAX_LIMITS", 100)
    per_key = {f"{i}": "3/minute" for i in range(150)}
    rate = limiter("3/minute", per_key=per_key)
    for user in per_key:
        hit(rate, user)
    store = store_of(rate)
    assert len(store) == 150
    limits = [ref(rate.peek({"user": user}).decisions[0].source) for user in per_key]
    del rate
    gc.collect()
    assert 0 < sum(limit() is not None for limit in limits) <= 100


def test_the_memory_of_a_process_has_no_facts() -> None:
    assert list(MemoryStore().facts()) == []
