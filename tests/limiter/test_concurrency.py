"""Slots: never more than N concurrent requests, and each slot is returned however its request ends."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from servers import PATIENCE, wait_for
from shared_store import SharedStore
from tables import each

from ratelimit_mw import Limiter, Quota, RateLimitExceeded, Rule
from ratelimit_mw.algorithms.concurrency import SLOT_LIFE, Concurrency
from ratelimit_mw.clock import SECOND
from ratelimit_mw.decision import Charge, Verdict
from ratelimit_mw.limiter import slots as held_slots
from ratelimit_mw.runtime.heartbeat import Heartbeat
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7"}


@pytest.fixture
def limiter(store: Store, clock: ManualClock) -> Iterator[Limiter]:
    made = Limiter([Rule(name="api", limits="2 concurrent")], store, clock)
    yield made
    made.close()


def free(limiter: Limiter) -> int:
    return limiter.peek(WHO, cost=0).decisions[0].remaining


def test_at_most_n_requests_at_once(limiter: Limiter) -> None:
    """A third request is rejected while two run. Another client is not."""
    with limiter.slot(WHO) as first, limiter.slot(WHO):
        assert first.decisions[0].remaining == 1
        with pytest.raises(RateLimitExceeded) as rejected, limiter.slot(WHO):
            raise AssertionError("a third ran")
        assert rejected.value.verdict.retry_after == 1.0
        with limiter.slot({"ip": "192.0.2.8"}):
            pass
    assert free(limiter) == 2


def test_a_slot_can_be_nested_with_async_with(limiter: Limiter) -> None:
    """async with works on the same object."""

    async def scenario() -> None:
        slot = limiter.slot(WHO)
        async with slot, slot:
            with pytest.raises(RateLimitExceeded):
                async with slot:
                    raise AssertionError("a third ran")

    asyncio.run(scenario())
    assert free(limiter) == 2


def test_an_error_returns_the_slot(limiter: Limiter) -> None:
    """Exceptions and cancellation leave no slot behind."""
    with pytest.raises(KeyError), limiter.slot(WHO):
        raise KeyError

    taken = asyncio.Event()

    async def held() -> None:
        async with limiter.slot(WHO):
            taken.set()
            await asyncio.sleep(30)

    async def scenario() -> None:
        task = asyncio.create_task(held())
        await taken.wait()
        assert free(limiter) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert free(limiter) == 2


@each("patience", range(4))
def test_a_task_cancelled_during_the_decision_holds_no_slot(patience: int) -> None:
    """The slot is returned as soon as the store has replied."""
    limiter = Limiter([Rule(name="api", limits="2 concurrent")], SharedStore(), ManualClock(1_000_000.0))

    async def scenario() -> None:
        task = asyncio.create_task(limiter.ahit(WHO))
        for _ in range(patience):
            await asyncio.sleep(0)
        assert task.cancel() == (not task.done())
        await asyncio.wait([task])
        if not task.cancelled():
            await limiter.arefund(task.result())
        await limiter.aclose()

    asyncio.run(scenario())
    assert free(limiter) == 2


def test_a_slot_without_renewal_expires_after_a_minute(limiter: Limiter, clock: ManualClock) -> None:
    """It expires exactly then, and returning it later frees no other slot."""
    lost = [limiter.hit(WHO), limiter.hit(WHO)]
    clock.advance(59.999999)
    assert not limiter.hit(WHO)
    clock.advance(0.000001)
    with limiter.slot(WHO), limiter.slot(WHO):
        for verdict in lost:
            limiter.refund(verdict)
        assert free(limiter) == 0


def test_a_held_slot_is_renewed(store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of two minutes keeps its slot. The thread ends after the request, and a later one has another."""
    monkeypatch.setattr(held_slots, "SLOT_LIFE", SECOND // 30)  # of the threads, not of the slots in the store
    limiter, others = Limiter([Rule(name="api", limits="1 concurrent")], store, clock), {*threading.enumerate()}
    for ends in (lambda: None, limiter.close, limiter.close):
        with limiter.slot(WHO):
            for _ in range(4):
                clock.advance(40)
                wait_for(lambda: ends_in(limiter) == 60.0, "a renewal")
            assert free(limiter) == 0
        ends()
    limiter.slots.hold(limiter.hit(WHO), limiter.rules)
    limiter.close()  # while a request holds its slot
    wait_for(lambda: not {*threading.enumerate()} - others, "the end of the thread")


def test_a_failed_renewal_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, and the other requests keep their slots."""
    renewed = threading.Event()
    bad, good = Verdict(), Verdict()

    def renew(verdict: Verdict) -> None:
        if verdict is bad:
            raise ValueError("broken")
        renewed.set()

    keeper, others = Heartbeat(renew, 0.01, "renew slots", "they end"), {*threading.enumerate()}
    keeper.hold(bad)
    keeper.hold(good)
    assert len({*threading.enumerate()} - others) == 1
    for _ in range(3):
        renewed.clear()
        assert renewed.wait(PATIENCE)
    keeper.close()
    assert caplog.text.count("could not renew slots; they end") == 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_slot_is_held_and_returned_when_no_thread_can_start(
    no_threads: pytest.MonkeyPatch, ends: bool, limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests continue without renewal, and one line says so, except at the end of the process."""
    if ends:
        no_threads.setattr(threading, "main_thread", threading.Thread)
    with limiter.slot(WHO), limiter.slot(WHO):
        assert free(limiter) == 0
    assert free(limiter) == 2
    assert caplog.text.count("no thread can renew or return slots (can't start new thread)") == (not ends)


def ends_in(limiter: Limiter) -> float:
    return limiter.peek(WHO, cost=0).decisions[0].reset_after


def test_a_rule_may_have_a_rate_and_slots(store: Store, clock: ManualClock) -> None:
    """The rate stays consumed, the slot is returned. A rejection takes neither."""
    limiter = Limiter([Rule(name="api", limits=["3/minute", "1 concurrent"])], store, clock)
    with limiter.slot(WHO), pytest.raises(RateLimitExceeded), limiter.slot(WHO):
        raise AssertionError("a second ran")
    for _ in range(2):
        with limiter.slot(WHO):
            pass
    assert [decision.remaining for decision in limiter.peek(WHO, cost=0).decisions] == [0, 1]
    verdict = limiter.hit(WHO)
    assert [decision.quota.concurrent for decision in verdict.rejected_by] == [False]
    limiter.close()


def test_a_cost_takes_as_many_slots(limiter: Limiter) -> None:
    """A request may take two slots. A cost beyond the limit has no retry_after."""
    with limiter.slot(WHO, cost=2):
        assert free(limiter) == 0
    assert limiter.hit(WHO, cost=3).retry_after is None
    assert free(limiter) == 2


def test_threads_never_exceed_the_limit() -> None:
    """With eight threads and two slots, at most two threads are inside."""
    limiter = Limiter([Rule(name="api", limits="2 concurrent")])
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            with suppress(RateLimitExceeded), limiter.slot(WHO):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0)
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert 1 <= max(most) <= 2
    assert free(limiter) == 2
    limiter.close()


# -- the arithmetic ----------------------------------------------------------------------------------------------


def test_each_slot_has_its_own_id() -> None:
    """Slots of one microsecond, and slots after a clock went back, have different ids."""
    rule = Concurrency(Quota.parse("3 concurrent"))
    state, first = rule.decide(None, 100, 1)
    state, second = rule.decide(state, 100, 1)
    state, third = rule.decide(state, 50, 1)
    assert len({first.at_us, second.at_us, third.at_us}) == 3
    assert rule.load(rule.dump(state)) == state
    for decision in (second, third, first):
        state = rule.refund(state, 100, Charge(decision.at_us, 1), 1)
    assert state is None
    assert rule.refund(None, 100, Charge(1, 1), 1) is None


def test_each_slot_expires_alone() -> None:
    """That of a killed worker is free again while others are taken. A peek needs no retry."""
    rule = Concurrency(Quota.parse("2 concurrent"))
    state, _ = rule.decide(None, 100, 1)
    state, _ = rule.decide(state, 101, 1)
    full = rule.decide(state, 102, 0)[1]
    assert (full.allowed, full.remaining, full.retry_us) == (True, 0, 0)
    renewed = rule.refund(state, 200, Charge(101, 1), 0)
    times = [100 + SLOT_LIFE, 101 + SLOT_LIFE, 200 + SLOT_LIFE]
    for each_state, expected in ((state, [1, 2, 2]), (renewed, [1, 1, 2])):
        assert [rule.decide(each_state, now, 0)[1].remaining for now in times] == expected


def test_some_of_the_slots_of_a_hit_can_be_returned() -> None:
    """Two of three slots are returned. An additional charge is a slot too."""
    rule = Concurrency(Quota.parse("4 concurrent"))
    state, taken = rule.decide(None, 100, 3)
    state = rule.refund(state, 100, Charge(taken.at_us, 3), 2)
    assert rule.decide(state, 100, 0)[1].remaining == 3
    state = rule.charge(state, 100, 1)
    assert rule.decide(state, 100, 0)[1].remaining == 2
    state = rule.charge(state, 100, 5)
    assert rule.decide(state, 100, 0)[1].remaining == 0
    assert rule.decide(state, 100, 1)[0] is state


def test_a_plan_without_slots_for_a_client_holds_nothing(store: Store, clock: ManualClock) -> None:
    """Where only some clients have a concurrency limit, the requests of the others are not renewed."""
    rule = Rule(name="api", limits="2 concurrent", per={"plan": {"pro": "100/minute"}})
    limiter = Limiter([rule], store, clock)
    for plan, held in (("pro", 0), ("free", 1)):
        verdict = limiter.hit({**WHO, "plan": plan})
        limiter.slots.hold(verdict, limiter.rules)
        assert len(limiter.slots.renewals) == held
    limiter.close()
