"""Calls of one process on the same keys: they do not race, and those that wait are decided together."""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from servers import wait_for

from ratelimit_mw.decision import Correction, Hit
from ratelimit_mw.errors import StateError, StoreError
from ratelimit_mw.runtime.blocking import run_blocking
from ratelimit_mw.stores.bytecall import Write
from ratelimit_mw.stores.bytestore import ByteStore
from ratelimit_mw.stores.turns import Turns
from ratelimit_mw.testing.store_suite import limit_of

NOW = 1_767_268_820_500_000
LIMIT = limit_of("1000/hour")


class DictStore(ByteStore):
    """A store in a dictionary. Each read adds its keys to ``loads``, and waits for a permit of ``may_read``."""

    def __init__(self) -> None:
        super().__init__(timeout_us=30_000_000)
        self.states: dict[str, bytes | None] = {}
        self.loads: list[Sequence[str]] = []
        self.may_read = threading.Semaphore(0)

    def load(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        self.loads.append(keys)
        self.may_read.acquire()
        return [self.states.get(key) for key in keys]

    def swap(self, writes: Sequence[Write]) -> Collection[str]:
        lost = [write.key for write in writes if self.states.get(write.key) != write.before]
        self.states |= {} if lost else {write.key: write.data for write in writes}
        return lost


@pytest.fixture
def store() -> Iterator[DictStore]:
    found = DictStore()
    yield found
    found.close()


def hit(client: str) -> Hit:
    return Hit(LIMIT, LIMIT.prefix + client, 1)


def test_calls_with_a_common_key_share_a_turn() -> None:
    """A call that belongs to two turns waits for both, and so does one that is decided alone."""
    turns, ended = Turns(), SimpleNamespace(keys={"a", "b"}, joins=True)
    texts = {"first": "a", "second": "ac", "other": "bd", "both": "cd", "alone": "c", "late": "a"}
    calls = {name: SimpleNamespace(keys={*text}, joins=name != "alone") for name, text in texts.items()}
    assert turns.take(ended)
    assert [turns.take(each) for each in calls.values()] == [False] * 6
    turns.end([ended])
    began = {name: each.turn.result() for name, each in calls.items() if each.turn.done()}
    assert began == {"late": [calls["first"], calls["second"], calls["late"]], "other": [calls["other"]]}
    turns.end(began["late"])
    turns.end(began["other"])
    assert calls["both"].turn.result() == [calls["both"]]
    assert not calls["alone"].turn.done()


@pytest.mark.parametrize("is_late", [False, True])
def test_requests_of_many_clients_share_a_turn_at_a_common_key(
    store: DictStore, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The first request is decided alone, and all that wait for it with one read.

    A late one has its decision too: the time for another attempt has ended, and not that for a reply.
    """
    real, seen = store._thread_driver.result, set[Any]()

    async def result(turn: Any, deadline: float) -> Any:
        calls = await real(turn, deadline)
        if is_late and turn not in seen:
            seen.add(turn)
            raise TimeoutError
        return calls

    monkeypatch.setattr(store._thread_driver, "result", result)
    with ThreadPoolExecutor(20) as pool:
        found = [pool.submit(store.apply, [hit("0"), hit("all")], NOW)]
        wait_for(lambda: store.loads, "the first read")
        found += [pool.submit(store.apply, [hit(f"{i}"), hit("all")], NOW) for i in range(1, 20)]
        wait_for(lambda: len(store._thread_driver.turns._waiting) == 19, "the others")
        store.may_read.release(3)
        decisions = [each.result() for each in found]
    assert len(store.loads) == 2
    assert store.apply([hit("all")], NOW)[0].remaining == 979  # the keys are free again
    assert sorted(second.remaining for _, second in decisions) == list(range(980, 1_000))
    assert {first.remaining for first, _ in decisions} == {999}


def test_corrections_share_the_turn_of_requests(store: DictStore) -> None:
    """All that wait for a key are made on one read, in the order in which they came."""
    store.may_read.release()
    (decision,) = store.apply([hit("all")], NOW)
    works: list[Callable[[], Any]] = [
        lambda: store.apply([hit("all")], NOW),
        lambda: store.correct([Correction.refund(decision)], NOW),
        lambda: store.apply([hit("all")], NOW),
    ]
    with ThreadPoolExecutor(3) as pool:
        found = []
        for number, work in enumerate(works):
            found.append(pool.submit(work))
            wait_for(lambda n=number: len(store._thread_driver.turns._waiting) == n and len(store.loads) == 2, "a call")
        store.may_read.release(2)
        first, times, second = [each.result() for each in found]
    assert len(store.loads) == 3
    assert ([each.remaining for each in (*first, *second)], times) == ([998, 998], [NOW])


@pytest.mark.parametrize(("cancelled", "fails"), [("leader", False), ("follower", False), ("follower", True)])
def test_a_request_that_is_cancelled_ends_its_turn(store: DictStore, cancelled: str, fails: bool) -> None:
    """The last request decides all that wait, even when it is cancelled: no client makes requests of others fail.

    When that fails, a request that was cancelled raises no other error.
    """

    async def scenario() -> list[type]:
        tasks = [asyncio.ensure_future(store.aapply([hit("all")], NOW)) for _ in range(3)]
        for reads in (1, 2):
            while len(store.loads) < reads:
                await asyncio.sleep(0.001)
            if reads == 1:
                store.may_read.release()
        tasks[1 if cancelled == "follower" else 2].cancel()
        await asyncio.sleep(0)
        store.states |= {hit("all").key: b"-"} if fails else {}
        store.may_read.release(2)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        store.states.clear()
        await store.aapply([hit("all")], NOW)
        return [type(each) for each in found]

    last = StateError if fails else list
    others = [asyncio.CancelledError, last] if cancelled == "follower" else [list, asyncio.CancelledError]
    assert asyncio.run(scenario()) == [list, *others]


def test_a_request_that_is_cancelled_as_its_turn_comes_leads_it(store: DictStore) -> None:
    """Otherwise no request could ever use the key again."""

    async def scenario() -> int:
        first, last = (asyncio.ensure_future(store.aapply([hit("all")], NOW)) for _ in range(2))
        store.may_read.release(3)
        await first
        while not last.done():  # as often as a task group of anyio
            last.cancel()
            await asyncio.sleep(0)
        return (await store.aapply([hit("all")], NOW))[0].remaining

    assert asyncio.run(scenario()) == 997


def test_a_correction_is_made_once_when_its_caller_leaves(store: DictStore) -> None:
    """The request that leads the turn makes it, so no thread may make it again later."""

    async def scenario() -> tuple[int, int]:
        store.may_read.release()
        (decision,) = await store.aapply([hit("all")], NOW)
        works = [store.aapply([hit("all")], NOW), store.acorrect([Correction.refund(decision)], NOW)]
        first, correction, last = map(asyncio.ensure_future, [*works, store.aapply([hit("all")], NOW)])
        await asyncio.sleep(0)
        store.may_read.release()
        await first
        while len(store.loads) < 3:
            await asyncio.sleep(0.001)
        while not correction.done():  # as often as a task group of anyio
            correction.cancel()
            await asyncio.sleep(0)
        kept = len(store._unmade)
        store.may_read.release()
        return kept, (await last)[0].remaining

    assert asyncio.run(scenario()) == (0, 998)


def test_a_damaged_state_fails_its_own_requests_alone(store: DictStore) -> None:
    """The others of its turn are decided, whichever request leads it."""
    store.states[hit("damaged").key] = b"-"
    with ThreadPoolExecutor(4) as pool:
        found = []
        for number, clients in enumerate((["all"], ["all", "damaged"], ["all"], ["damaged", "all"])):
            found.append(pool.submit(store.apply, [hit(client) for client in clients], NOW))
            wait_for(lambda n=number: len(store._thread_driver.turns._waiting) == n and len(store.loads) == 1, "a call")
        store.may_read.release(3)
        errors = [each.exception() for each in found]
    assert [getattr(each, "keys", each) for each in errors] == [None, (hit("damaged").key,)] * 2
    assert [found[i].result()[0].remaining for i in (0, 2)] == [999, 998]


def test_a_call_that_fails_frees_its_keys(store: DictStore) -> None:
    """Otherwise all later requests of this process with such a key would wait for it."""
    store.states[hit("damaged").key] = b"-"
    store.may_read.release(2)
    with pytest.raises(StateError):
        store.apply([hit("damaged")], NOW)
    store.states.clear()
    assert store.apply([hit("damaged")], NOW)[0].remaining == 999


@pytest.mark.parametrize(
    ("replies", "ends", "error"),
    [(True, TimeoutError, None), (False, TimeoutError, StoreError), (True, KeyboardInterrupt, KeyboardInterrupt)],
)
def test_a_request_without_its_turn_in_time_is_rejected(
    store: DictStore, monkeypatch: pytest.MonkeyPatch, replies: bool, ends: type[BaseException], error: Any
) -> None:
    """The store has not failed if it replies to others meanwhile. A correction is made without a turn, or later."""

    async def wait(*_: Any) -> Any:
        if replies:
            store.apply([hit("other")], NOW)
        raise ends

    monkeypatch.setattr(store._thread_driver, "result", wait)
    store.may_read.release()
    turns, busy = store._thread_driver.turns, SimpleNamespace(keys={hit("all").key}, joins=True)
    assert turns.take(busy)
    with pytest.raises(error) if error else nullcontext():
        assert [each.retry_us for each in store.apply([hit("all")], NOW)] == [100_000]
    store.may_read.release(2)
    with pytest.raises(error) if error else nullcontext():
        assert store.correct([Correction(LIMIT, hit("all").key, 1, None)], NOW) == [NOW]
    assert len(store._unmade) == (error is not None)
    turns.end([busy])


def test_a_late_request_does_not_race_again(store: DictStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of its turn may have time left. The store has replied, so the late one is rejected now, not failed."""
    late, leader = calls = [store._begin(store._thread_driver, 30.0) for _ in range(2)]
    for each in calls:
        each.hits = [hit("all")]
    late.is_late, late.turn, lost = True, Future(), [[hit("all").key], []]
    monkeypatch.setattr(store, "swap", lambda _: lost.pop(0))
    store.may_read.release(2)
    run_blocking(leader.run_all(calls))
    assert [each.decisions[0].allowed for each in calls] == [False, True]
    assert late.turn.done()


@pytest.mark.parametrize("is_atomic", [True, False])
def test_a_request_that_loses_one_race_has_consumed_nothing(
    store: DictStore, monkeypatch: pytest.MonkeyPatch, is_atomic: bool
) -> None:
    """A store that writes all or none refunds no key. Another one writes a place in a queue last: it has no refund."""
    monkeypatch.setattr(store, "is_atomic", is_atomic)
    queue = limit_of("1000/hour", {"name": "leaky-bucket", "mode": "queue"})
    hits = [Hit(queue, queue.prefix, 1), hit("a"), hit("b")]
    place, *others = keys = [each.key for each in hits]
    store.may_read.release(3)
    store.apply(hits, NOW)
    swap, lost, swapped = store.swap, [hit("b").key], []

    def swap_second(writes: Sequence[Write]) -> Collection[str]:
        swapped.append([each.key for each in writes])
        if not lost:
            return swap(writes)
        swap([each for each in writes if not is_atomic and each.key not in lost])
        return [lost.pop()]

    monkeypatch.setattr(store, "swap", swap_second)
    assert [each.remaining for each in store.apply(hits, NOW)] == [998] * 3
    assert swapped == ([keys, keys] if is_atomic else [others, others, [place]])


def test_a_rejection_stays_while_its_refund_loses_a_race(store: DictStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt lost only the second limit, which is full in the next one, and that loses the refund."""
    monkeypatch.setattr(store, "is_atomic", False)
    store.may_read.release(5)
    store.apply([Hit(LIMIT, hit("full").key, 1_000)], NOW)
    swap, losses = store.swap, [hit("b").key, hit("a").key]

    def swap_third(writes: Sequence[Write]) -> Collection[str]:
        lost = [losses.pop(0)] if losses else []
        swap([each for each in writes if each.key not in lost])
        store.states[hit("b").key] = store.states[hit("full").key]
        return lost

    monkeypatch.setattr(store, "swap", swap_third)
    assert [each.allowed for each in store.apply([hit("a"), hit("b")], NOW)] == [True, False]
    assert store.apply([hit("a")], NOW)[0].remaining == 999


def test_a_probe_of_a_store_of_your_own_reads(store: DictStore) -> None:
    """At the start, too: only a reply shows that the store is there. An event loop that has ended leaves nothing."""
    store.may_read.release(4)
    store.start()
    for _ in range(2):
        asyncio.run(store.astart())
    store.ping()
    assert (store.loads, len(store._loop_drivers.values)) == ([[""]] * 4, 1)
