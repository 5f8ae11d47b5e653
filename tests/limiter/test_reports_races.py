"""Requests, reports and refunds of ``consistency = "reported"`` that run at the same time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from report_processes import ALL, ENDPOINT, WHO, Process, both, reported, setup
from shared_store import SharedStore

from ratelimit_mw import Quota, Rule
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.limiter.chain.report_table import Account
from ratelimit_mw.receipt import Correction
from ratelimit_mw.stores.heartbeat import Heartbeat
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.usefixtures("no_report_thread")


def test_concurrent_first_requests_are_all_counted() -> None:
    """Each of them asks the store. Later ones are decided by what is left besides those without a reply."""

    async def scenario() -> tuple[int, list[int]]:
        _, (process,) = setup(reported("20/minute"))
        await process.limiter.ahit(WHO)
        verdicts = await asyncio.gather(*(process.limiter.ahit(WHO) for _ in range(40)))
        await process.limiter.aclose()
        return sum(verdict.allowed for verdict in verdicts), process.rest()

    assert asyncio.run(scenario()) == (19, [0])


def test_a_request_puts_its_consumption_back_into_a_dropped_account() -> None:
    """The account was reported and dropped while another limit was asked. The store gets a refund."""

    async def scenario() -> list[int]:
        _, (process,) = setup(reported(), Rule(name="endpoint", limits="3/minute", key="path"))
        for _ in range(3):
            await process.limiter.ahit(WHO)
        task = asyncio.ensure_future(process.limiter.ahit(WHO))
        await asyncio.sleep(0)
        process.report()
        process.report()
        assert not process.limiter._leases._reports.accounts  # type: ignore[union-attr]
        assert not await task
        process.report()
        return process.rest()

    assert asyncio.run(scenario()) == [997, 0]


def test_a_request_puts_its_consumption_back_into_the_account_of_a_later_one() -> None:
    """The later account has counted nothing, because its requests were rejected."""

    async def scenario() -> list[int]:
        _, (process,) = setup(reported(), Rule(name="endpoint", limits="3/minute", key="path"))
        for _ in range(3):
            await process.limiter.ahit(WHO)
        task = asyncio.ensure_future(process.limiter.ahit(WHO))
        link: Any = process.limiter._leases
        while not any(account.unsent == 2 for account in link._reports.accounts.values()):
            await asyncio.sleep(0)
        process.report()
        process.report()
        assert not link._reports.accounts
        assert not process.hit()
        (account,) = link._reports.accounts.values()
        assert not account.counted_at
        assert not await task
        process.report()
        process.report()
        return process.rest()

    assert asyncio.run(scenario()) == [997, 0]


def test_a_refund_waits_for_the_sum_that_is_under_way() -> None:
    """The store could not tell when the cost was counted, because it has not counted any cost yet."""
    _, (process,) = setup(reported(), Rule(name="endpoint", limits="1/minute", key="path"))
    process.hit()
    assert not process.hit()  # opens the account
    link: Any = process.limiter._leases
    (account,) = link._reports.accounts.values()
    account.serve(Hit(account.limit, account.key, 66), link._clock())
    apply = process.shared.apply

    def slow(*arguments: Any) -> Any:
        """Meanwhile another limit rejects the requests, and another thread reports."""
        patch.undo()
        account.add(-66)
        process.report()
        return apply(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.shared, "apply", slow)
        process.report()
    process.report()
    assert process.rest() == [999, 0]


def test_a_refund_of_a_cost_that_the_store_counted_before_the_account() -> None:
    """The account was opened by a rejected request."""
    _, (process,) = setup(reported(), Rule(name="endpoint", limits="1/minute", key="path"))
    first = process.hit()
    assert not process.hit()
    process.limiter.settle(first, 0, "api")
    process.report()
    process.report()
    assert process.rest() == [1000, 0]


def test_a_reset_during_a_call_opens_no_account() -> None:
    """The reply belongs to a state that is gone."""

    async def scenario() -> Any:
        _, (process,) = setup(reported("1/minute"))
        verdict = await process.limiter.ahit(WHO)
        task = asyncio.ensure_future(process.limiter.ahit(WHO))
        await asyncio.sleep(0)
        link: Any = process.limiter._leases
        link.forget_here([verdict.decisions[0].key])
        assert not await task
        return link._reports.accounts

    assert not asyncio.run(scenario())


def test_a_reply_that_was_overtaken_does_not_replace_a_later_one() -> None:
    """It only ends the wait for its own cost. The times of the store do not matter."""
    account = Account(Limit("api", 0, Quota("10/minute"), "fixed-window", reports=True), "key")
    account.send(1)
    account.send(2)
    account.settle(2, Decision(True, 7, 0, 9, 20), True, 5, 0)
    assert account.rest == 6
    account.settle(1, Decision(True, 9, 0, 9, 30), True, 6, 0)
    assert (account.rest, account.known_at, account.counted_at) == (7, 6, 30)
    account.settle(0, Decision(True, 9, 0, 9, 10), False, 9, 2)  # the clock of the store has gone back
    assert (account.rest, account.known_at) == (9, 9)


@both
def test_a_clock_that_goes_back_opens_no_new_rest(is_async: bool) -> None:
    """The account is too old then, and reports show the rest again."""
    clock, (process,) = setup(reported("500/day"))
    allowed = sum(process.hit(is_async=is_async).allowed for _ in range(50))
    clock.advance(-5)
    process.down = True
    assert process.hit(is_async=is_async).decisions[0].local
    process.down = False
    for _ in range(60):
        allowed += sum(process.hit(is_async=is_async).allowed for _ in range(10))
        clock.advance(0.05)
        process.report()
    assert allowed == 500


def test_an_account_is_not_used_for_long_while_reports_fail() -> None:
    """Reports that are under way extend its use once, by one interval, even when there are many."""
    clock, (process,) = setup()
    for _ in range(10):
        process.hit()
    (account,) = process.limiter._leases._reports.accounts.values()  # type: ignore[union-attr]
    known_at = clock()
    for _ in range(5):
        account.send(account.take())
        clock.advance(0.1)
    assert account.fresh_until == known_at + 300_000
    account.keep(0)
    assert account.fresh_until == known_at + 200_000


@both
def test_a_correction_reopens_an_account_that_was_dropped_during_its_call(is_async: bool) -> None:
    """The corrections of other rules go to the store. Meanwhile, the thread drops the idle account."""
    _, (process,) = setup(reported("100000/minute"), ENDPOINT)
    link: Any = process.limiter._leases
    verdict = [process.hit() for _ in range(4)][-1]
    correct = process.shared.correct

    def slow(*arguments: Any) -> Any:
        process.report()
        process.report()
        assert not link._reports.accounts
        return correct(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.shared, "correct", slow)
        process.limiter._state_cost(verdict, 5000, "api")
        process.limiter._state_cost(verdict, 0, "endpoint")
        asyncio.run(process.limiter._acorrect(verdict)) if is_async else process.limiter._correct(verdict)
    process.report()
    assert process.rest() == [100000 - 5003, 3]


def test_a_change_of_a_dropped_account_is_reported() -> None:
    """The thread starts again for it. A second account of the key that knows nothing yet makes way."""
    _, (process,) = setup()
    for _ in range(3):
        process.hit()
    link: Any = process.limiter._leases
    (account,) = link._reports.accounts.values()
    process.report()
    process.report()
    held = []
    opened = link._reports.accounts[account.key] = Account(account.limit, account.key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "hold", lambda _, item: held.append(item))
        link._reopen(account).add(-1)
    assert held == [link._reports]
    opened.send(1)
    link._reports.learn(opened, 1, 0, None, False, 0)
    process.report()
    assert process.rest() == [998]


def test_a_cancelled_report_is_completed() -> None:
    """The request that has started it ends, and its sum is counted once."""

    async def scenario() -> list[int]:
        clock, (process, other) = setup(processes=2)
        for _ in range(10):
            await process.limiter.ahit(WHO)
        clock.advance(0.3)
        task = asyncio.ensure_future(process.limiter.ahit(WHO))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
        process.report()
        return other.rest()

    assert asyncio.run(scenario()) == [990]


class SlowProcess(Process):
    """Its calls arrive late, and so do their replies."""

    chance = random.Random(0)

    async def _wait(self) -> None:
        for _ in range(self.chance.choice((0, 1, 1, 3, 9))):
            await asyncio.sleep(0)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        await self._wait()
        decisions = self.apply(hits, now, consume)
        await self._wait()
        return decisions

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        await self._wait()
        times = self.correct(changes, now)
        await self._wait()
        return times


@pytest.mark.parametrize("seed", range(10))
def test_concurrent_requests_are_counted_once(seed: int) -> None:
    """Requests, reports and refunds are out together. In the end, the store counts each allowed cost once."""
    clock, shared = ManualClock(1_000_020.0), SharedStore()
    rules = (reported("300/minute"), ALL, Rule(name="endpoint", limits="50/minute", key="path"))
    processes = [SlowProcess(shared, clock, *rules) for _ in range(3)]
    chance = SlowProcess.chance = random.Random(seed)
    used: list[int] = []

    async def request(process: Process) -> None:
        features, cost = {**WHO, "path": f"/{chance.randrange(9)}"}, chance.choice((1, 1, 3))
        if verdict := await process.limiter.ahit(features, cost):
            used.append(cost)
            if chance.random() < 0.2:
                await process.limiter.arefund(verdict)
                used.append(-cost)

    async def report(process: Process) -> None:
        link: Any = process.limiter._leases
        await link.areport(link._reports.due(clock()))

    async def scenario() -> None:
        for _ in range(40):
            works = [chance.choice((request, request, request, report)) for _ in range(15)]
            await asyncio.gather(*(work(chance.choice(processes)) for work in works))
            clock.advance(chance.choice((0, 0.05, 0.15)))
        for process in processes:
            await process.limiter.aclose()

    asyncio.run(scenario())
    assert sum(used) <= 300 + 2 * 300
    assert processes[0].rest()[:2] == [max(0, 300 - sum(used)), 1000 - sum(used)]
