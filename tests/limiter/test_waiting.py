"""Waiting for a slot: the order, the end of a wait, and requests that leave their queue."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from calls import on_loop
from forked import become_child
from limiter_ways import waiting
from servers import wait_for
from shared_store import SharedStore
from tables import expect_error

from ratelimit_mw import Limiter, Rule, load_settings
from ratelimit_mw.decision import Verdict
from ratelimit_mw.limiter import slots
from ratelimit_mw.runtime.blocking import async_call
from ratelimit_mw.stores import MemoryStore, Store
from ratelimit_mw.testing import ManualClock

ANN, BOB = {"user": "ann"}, {"user": "bob"}
HOUR = 3600  # a test that waits for so long hangs, and fails


@pytest.fixture
def limiter(store: Store, clock: ManualClock) -> Iterator[Limiter]:
    made = build(store=store, clock=clock)
    yield made
    made.close()


def build(limits: Any = "1 concurrent", *, store: Any = None, clock: Any = None, **options: Any) -> Limiter:
    options = {"key": ["user"], "wait": HOUR, **options}
    return Limiter([Rule(name="jobs", limits=limits, **options)], store or MemoryStore(), clock)


def wait_until(limiter: Limiter, number: int) -> None:
    wait_for(lambda: waiting(limiter) == number, f"{number} waiting requests")


async def turn_until(condition: Callable[[], object]) -> None:
    """Let the other tasks run until the condition is true."""
    while not condition():
        await asyncio.sleep(0)


def test_threads_are_served_in_the_order_in_which_they_came(limiter: Limiter) -> None:
    """A slot that is returned goes to the first of them. A new request waits behind them."""
    served: list[int] = []

    def job(number: int) -> None:
        with limiter.slot(ANN):
            served.append(number)

    with ThreadPoolExecutor(8) as pool:
        with limiter.slot(ANN):
            jobs = []
            for number in range(8):
                jobs.append(pool.submit(job, number))
                wait_until(limiter, number + 1)
        for each in jobs:
            each.result()
    assert served == list(range(8))
    assert waiting(limiter) == 0


def test_tasks_are_served_in_the_order_in_which_they_came(limiter: Limiter) -> None:
    """A slot that is returned goes to the first of them. A new request waits behind them."""
    served: list[int] = []

    async def job(number: int) -> None:
        async with limiter.slot(ANN):
            served.append(number)

    async def scenario() -> None:
        jobs = []
        async with limiter.slot(ANN):
            for number in range(8):
                jobs.append(asyncio.ensure_future(job(number)))
                await turn_until(lambda: waiting(limiter) == len(jobs))
        jobs.append(asyncio.ensure_future(job(8)))
        await asyncio.gather(*jobs)

    asyncio.run(scenario())
    assert served == list(range(9))
    assert waiting(limiter) == 0


def test_a_slot_that_is_returned_while_a_request_prepares_to_wait_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may return it at any step of the request."""
    limiter = build()
    held = [limiter.hit(ANN)]

    class Woken(Future[None]):
        def set_running_or_notify_cancel(self) -> bool:
            if held and waiting(limiter):
                limiter.conclude(held.pop(), 200)
            return super().set_running_or_notify_cancel()

    monkeypatch.setattr(slots, "Future", Woken)
    assert limiter.hit(ANN)
    assert (held, waiting(limiter)) == ([], 0)


def test_another_client_does_not_wait(limiter: Limiter) -> None:
    """There is one queue for each key."""
    with limiter.slot(ANN), ThreadPoolExecutor(1) as pool:
        job = pool.submit(limiter.hit, ANN)
        wait_until(limiter, 1)
        with limiter.slot(BOB):
            assert not job.done()
        limiter.reset("jobs", ANN)
        assert job.result()


def test_a_wait_ends_in_time(store: Store, clock: ManualClock) -> None:
    """The rejection is that of every request without a slot."""
    limiter = build(store=store, clock=clock, wait="20s")
    with limiter.slot(ANN), ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(limiter.hit, ANN)]
        wait_until(limiter, 1)
        clock.advance(19)
        jobs.append(pool.submit(limiter.hit, ANN))
        wait_until(limiter, 2)
        clock.advance(1)
        verdict = jobs[0].result()
        assert (verdict.allowed, verdict.retry_after, verdict.decisions[0].remaining) == (False, 1.0, 0)
        assert not jobs[1].done()
        clock.advance(19)
        assert not jobs[1].result()
    assert waiting(limiter) == 0
    limiter.close()


def test_a_real_wait_ends_by_the_real_time() -> None:
    """Without a clock of its own, and also with one that is not moved."""
    for clock in (None, ManualClock(1_000_000.0)):
        limiter = build(wait="10ms", clock=clock)
        with limiter.slot(ANN):
            assert not limiter.hit(ANN)
            assert not asyncio.run(limiter.ahit(ANN))


@on_loop
async def test_a_request_that_is_not_the_first_asks_once_at_the_end_of_its_wait(
    clock: ManualClock, shared: SharedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdict is as fresh as the one of the first."""
    limiter, sleeps = build(store=shared, clock=clock), list[float]()

    may_wake = asyncio.Event()

    async def sleep(_: object, call: object, seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 1:
            await may_wake.wait()
        else:
            clock.advance(HOUR)

    monkeypatch.setattr(slots.Waiter, "sleep", sleep)
    await limiter.ahit(ANN)
    first = asyncio.create_task(limiter.ahit(ANN))
    await turn_until(lambda: sleeps)
    calls = shared.calls
    assert await limiter.ahit(ANN), "the slot of the one before has expired"
    assert (len(sleeps), sleeps[1] > 1.0, shared.calls - calls, waiting(limiter)) == (2, True, 1, 1)
    may_wake.set()
    assert not await first


def test_a_full_queue_rejects_at_once(store: Store) -> None:
    """Even when a slot is free at that moment, because the queue comes first. A request that waits consumes nothing."""
    limiter = build(["1 concurrent", "5/hour"], store=store, max_waiting=1)
    with ThreadPoolExecutor(1) as pool:
        with limiter.slot(ANN):
            job = pool.submit(limiter.hit, ANN)
            wait_until(limiter, 1)
            for verdict in (limiter.hit(ANN), asyncio.run(limiter.ahit(ANN))):
                slots, rate = verdict.decisions
                assert (verdict.allowed, verdict.status, verdict.retry_after) == (False, 429, 1.0)
                assert (slots.allowed, slots.remaining, rate.allowed, rate.remaining) == (False, 0, True, 4)
        assert job.result().decisions[1].remaining == 3
    limiter.close()


def test_a_request_that_another_limit_rejects_does_not_wait(limiter: Limiter) -> None:
    """Nor one whose cost never fits, or one that is not allowed at all."""
    mixed = build(["1 concurrent", "1/hour"])
    with mixed.slot(ANN):
        assert mixed.hit(ANN).retry_after != 1.0
    assert limiter.hit(ANN, cost=2).retry_after is None
    denied = Limiter.from_settings(
        {
            "rules": [{"name": "jobs", "limits": "1 concurrent", "wait": "1h"}],
            "lists": {"deny": {"ip": "192.0.2.7"}},
        }
    )
    assert denied.hit({"ip": "192.0.2.7"}).denied


def test_a_request_moves_to_the_queue_of_the_slot_that_it_lacks() -> None:
    """Of its two slots, now one and now the other is free. It is rejected when the queue that it goes to is full."""
    places = {"user": 2, "ip": 1}
    limiter = Limiter(
        [
            Rule(name=name, key=[name], limits="1 concurrent", wait=HOUR, max_waiting=most)
            for name, most in places.items()
        ]
    )

    def hit(user: str, ip: str) -> Awaitable[Verdict]:
        return asyncio.ensure_future(limiter.ahit({"user": user, "ip": ip}))

    async def scenario() -> None:
        by_user, by_ip = await hit("ann", "::1"), await hit("bob", "::2")
        moving = hit("ann", "::2")
        await turn_until(lambda: waiting(limiter) == 1)
        await limiter.arefund(by_user)
        third = await hit("ann", "::3")  # served once the first one has left the queue
        await limiter.arefund(by_ip)
        await limiter.arefund(third)
        by_user, by_ip = await moving, await hit("cat", "::4")
        assert by_user.allowed
        moving = hit("ann", "::4")
        await turn_until(lambda: waiting(limiter) == 1)
        last = hit("dan", "::4")
        await turn_until(lambda: waiting(limiter) == 2)
        await limiter.arefund(by_user)
        assert not await moving
        await limiter.arefund(by_ip)
        assert (await last).allowed

    asyncio.run(scenario())
    assert waiting(limiter) == 0


def test_a_task_that_is_cancelled_leaves_the_queue(limiter: Limiter) -> None:
    """The next one gets the slot."""

    async def scenario() -> None:
        async with limiter.slot(ANN):
            jobs = []
            for _ in range(3):
                jobs.append(asyncio.ensure_future(limiter.ahit(ANN)))
                await turn_until(lambda: waiting(limiter) == len(jobs))
            jobs[0].cancel()
            jobs[1].cancel()
            await asyncio.wait(jobs[:2])
            assert waiting(limiter) == 1
        assert await jobs[2]

    asyncio.run(scenario())
    assert waiting(limiter) == 0


class LateStore(SharedStore):
    """A store whose replies come some turns of the loop after it has decided."""

    async def aapply(self, *arguments: Any) -> Any:
        decisions = await super().aapply(*arguments)
        for _ in range(3):
            await asyncio.sleep(0)
        return decisions


def test_a_task_that_is_cancelled_with_a_slot_returns_it() -> None:
    """The store may count the slot while its request is cancelled, at any moment."""
    store, lost = LateStore(), 0

    async def scenario(turns: int) -> int:
        limiter = build(store=store)
        verdict = await limiter.ahit(ANN)
        job = asyncio.ensure_future(limiter.ahit(ANN))
        await turn_until(lambda: waiting(limiter) == 1)
        await limiter.arefund(verdict)
        for _ in range(turns):
            await asyncio.sleep(0)
        if job.cancel():
            await asyncio.wait([job])
        else:
            await limiter.arefund(job.result())
        lost = len(limiter.slots.returns)
        await limiter.aclose()
        assert limiter.peek(ANN, cost=0).decisions[0].remaining == 1
        return lost

    for turns in range(6):
        lost += asyncio.run(scenario(turns))
    assert lost > 1


def test_slots_of_another_process_are_noticed(monkeypatch: pytest.MonkeyPatch, shared: SharedStore) -> None:
    """No process learns from another that a slot is free, so the first request asks again and again."""
    monkeypatch.setattr(slots, "_ASK_EVERY", 0.001)
    here, there = build(store=shared), build(store=shared)
    verdict = there.hit(ANN)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(here.hit, ANN)
        wait_until(here, 1)
        there.conclude(verdict, 200)
        assert job.result()
    here.close()
    there.close()


def test_a_blocking_call_on_an_event_loop_and_a_peek_do_not_wait(limiter: Limiter, way: Any) -> None:
    """The call would stop all requests of the loop, including the one that has the slot."""

    async def scenario() -> Verdict:
        return limiter.hit(ANN)

    with limiter.slot(ANN):
        assert not asyncio.run(scenario())
        assert not way(limiter).peek(ANN)


def test_a_task_whose_loop_has_ended_is_passed_over() -> None:
    """A slot that is returned later finds its waiter gone."""
    waiter = slots.Waiter()

    async def scenario() -> None:
        asyncio.ensure_future(waiter.sleep(async_call, HOUR))  # noqa: RUF006 - the end of the loop cancels it
        await asyncio.sleep(0)

    asyncio.run(scenario())
    waiter.wake()


def test_a_store_that_cannot_be_reached_ends_the_wait(clock: ManualClock, shared: SharedStore) -> None:
    """The policy of the rule decides."""
    limiter = build(store=shared, clock=clock, on_store_error="deny")
    with limiter.slot(ANN), ThreadPoolExecutor(1) as pool:
        job = pool.submit(limiter.hit, ANN)
        wait_until(limiter, 1)
        shared.down = True
        assert job.result().unavailable
        shared.down = False
    limiter.close()


@on_loop
async def test_a_forked_child_has_no_waiting_requests(limiter: Limiter) -> None:
    """They wait in the parent."""
    await limiter.ahit(ANN)
    parents = asyncio.create_task(limiter.ahit(ANN))
    await turn_until(lambda: waiting(limiter))
    become_child()
    assert waiting(limiter) == 0
    parents.cancel()


def test_a_rule_with_a_slot_may_wait() -> None:
    """The slot may be in a table, or come from a function. A wait that no limit uses is an error."""
    rules: list[dict[str, Any]] = [
        {"limits": "1/s; 1 concurrent"},
        {"limits": "1/s", "per_key": {"ann": "1 concurrent"}},
        {"limits": lambda _: "1/s"},
    ]
    for options in rules:
        assert Rule(key=["user"], wait="1.5s", **options).wait_us == 1_500_000
    expect_error(
        'wait: no limit of the rule uses it. Add a limit such as "2 concurrent"', Rule, limits="5/minute", wait="5s"
    )


def test_an_override_may_add_a_wait() -> None:
    """The limits of the decorator are not known when the settings are loaded."""
    assert load_settings({"rules": [{"overrides": "jobs", "wait": "5s"}]}).amendments
