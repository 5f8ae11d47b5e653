"""``consistency = "reported"``: busy keys are decided here, their sums are reported, and the excess has a bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from shared_store import SharedStore

from ratelimit_mw import Limiter, Quota, Rule, Verdict, forksafe
from ratelimit_mw.algorithms.limit import Limit
from ratelimit_mw.decision import Decision, Hit
from ratelimit_mw.errors import StateError, StoreError
from ratelimit_mw.limiter.report_table import Account
from ratelimit_mw.receipt import Correction
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.heartbeat import Heartbeat
from ratelimit_mw.testing import ManualClock

WHO = {"ip": "192.0.2.7", "path": "/"}
both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests report themselves, at the times of their clock."""
    monkeypatch.setattr(Heartbeat, "hold", lambda *_: None)


class Process(Store):
    """One process: a limiter with its own way to a store that all share."""

    def __init__(self, shared: SharedStore, clock: ManualClock, *rules: Rule, cache: int = 0, **options: Any) -> None:
        self.shared, self.down, self.mute = shared, False, False
        self.calls: list[str] = []
        settings = Settings(rejection_cache=cache, fleet_size=1, **options)  # no announcements
        self.limiter = Limiter(rules, self, clock, settings)

    def report(self) -> None:
        """The work of the thread, once."""
        link: Any = self.limiter._leases
        link._report_due(link._reports)

    def hit(self, cost: int | None = None, is_async: bool = False, **features: str) -> Verdict:
        features = {**WHO, **features}
        return asyncio.run(self.limiter.ahit(features, cost)) if is_async else self.limiter.hit(features, cost)

    def rest(self, **features: str) -> list[int]:
        """The rest in the store."""
        found = self.limiter.peek({**WHO, **features}, cost=0).decisions
        self.calls.pop()
        return [decision.remaining for decision in found]

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        if self.down:
            raise StoreError("it does not answer")
        result = getattr(self.shared, name)(*arguments)
        if self.mute:
            raise StoreError("it is not heard")
        return result

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        return self._call("apply", hits, now, consume)  # type: ignore[no-any-return]

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        return self._call("correct", changes, now)  # type: ignore[no-any-return]

    def forget(self, keys: Iterable[str]) -> None:
        self._call("forget", keys)

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        await asyncio.sleep(0)
        return self.apply(hits, now, consume)


def reported(limits: str = "1000/minute", algorithm: str = "fixed-window", **options: Any) -> Rule:
    return Rule(name="api", limits=limits, algorithm=algorithm, consistency="reported", **options)


def setup(*rules: Rule, processes: int = 1, **options: Any) -> tuple[ManualClock, list[Process]]:
    clock, shared = ManualClock(1_000_020.0), SharedStore()
    return clock, [Process(shared, clock, *(rules or (reported(),)), **options) for _ in range(processes)]


@both
def test_two_hits_ask_the_store_and_the_others_are_reported(is_async: bool) -> None:
    """The first hit of a key is alone, and the second shows the rest. One report has the sum of all later hits."""
    clock, (process, other) = setup(processes=2)
    left = [process.hit(is_async=is_async).decisions[0].remaining for _ in range(50)]
    assert left == list(range(999, 949, -1))
    assert process.calls == ["apply"] * 2
    assert other.rest() == [998]
    clock.advance(0.1)
    process.report()
    assert process.calls == ["apply"] * 3
    assert other.rest() == [950]
    assert process.hit().decisions[0].reset_after == 59.9


def test_a_report_has_all_keys_and_drops_those_that_are_idle() -> None:
    """One call for 500 keys. A key without a hit since the last report is asked for again."""
    _, (process,) = setup()
    for _ in range(3):
        for i in range(501):
            process.hit(ip=f"client-{i}")
    process.calls.clear()
    process.report()
    assert process.calls == ["apply"] * 2
    process.hit(ip="client-7")
    process.report()
    assert process.calls == ["apply"] * 3
    process.hit(ip="client-8")
    assert process.calls == ["apply"] * 4
    process.report()
    process.report()
    assert not process.limiter._leases._reports.accounts  # type: ignore[union-attr]


def test_a_process_learns_what_the_others_have_consumed() -> None:
    """From the reply to its report, without another call."""
    _, (one, two) = setup(processes=2)
    for process in (one, two) * 2:
        process.hit()
    for _ in range(300):
        one.hit()
        two.hit()
    one.report()
    two.report()
    assert two.hit().decisions[0].remaining == 1000 - 604 - 1
    assert one.hit().decisions[0].remaining == 1000 - 304 - 1, "two has reported later"


@both
def test_a_limit_is_used_up_exactly_by_one_process(is_async: bool) -> None:
    """Without other processes nothing exceeds the limit, and the exact wait is known after the next report."""
    clock, (process,) = setup(cache=1_000_000)
    assert sum(process.hit(is_async=is_async).allowed for _ in range(1_100)) == 1000
    verdict = process.hit(is_async=is_async)
    assert (verdict.allowed, verdict.retry_after, verdict.decisions[0].reset_after) == (False, 60.0, 60.0)
    assert process.hit(2000).retry_after is None
    assert process.hit(0)
    assert len(process.calls) == 2
    process.report()
    assert process.rest() == [0]
    clock.advance(1)
    assert process.hit().retry_after == 59.0
    assert process.calls == ["apply"] * 4


def test_the_wait_under_a_counter_is_estimated_until_the_next_report() -> None:
    """Before it, all consumption counts as recent, and the rejection is not cached. After it, the wait is exact."""
    clock, (process, other) = setup(reported(algorithm="sliding-window-counter"), processes=2)
    for _ in range(1000):
        process.hit()
    process.report()
    clock.advance(65)
    for _ in range(2):
        process.hit()
    rest = process.rest()[0]
    while verdict := process.hit():
        pass
    assert rest > 0
    estimated = verdict.retry_after
    process.report()
    exact = process.hit().retry_after
    assert exact == other.hit().retry_after
    assert estimated
    assert exact
    assert estimated > exact


def test_a_rejection_holds_until_the_next_report() -> None:
    """A bucket that refills faster: the wait is at least the interval."""
    _, (process,) = setup(reported("100000/minute burst 100", "token-bucket"))
    for _ in range(100):
        assert process.hit()
    assert process.hit().retry_after == 0.1


@both
def test_a_late_report_is_made_by_the_next_request(is_async: bool) -> None:
    """When the thread has not reported for two intervals, the request does, and is then decided here."""
    clock, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit(is_async=is_async)
    clock.advance(0.19)
    assert process.hit(is_async=is_async)
    assert len(process.calls) == 2
    clock.advance(0.02)
    assert process.hit(is_async=is_async).decisions[0].remaining == 1000 - 12
    assert process.calls == ["apply"] * 3
    assert other.rest() == [1000 - 11]


@both
def test_a_failed_report_is_kept(is_async: bool) -> None:
    """``on_store_error`` decides once the account is too old. The next report has the sum."""
    clock, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit(is_async=is_async)
    process.down = True
    process.report()
    assert not process.hit(is_async=is_async).decisions[0].local
    clock.advance(0.3)
    assert process.hit(is_async=is_async).decisions[0].local
    process.down = False
    process.report()
    assert other.rest() == [1000 - 11], "without the hit that was decided locally"
    assert not process.hit(is_async=is_async).decisions[0].local


def test_a_report_without_a_reply_is_sent_again() -> None:
    """The store may count it twice, and never less."""
    _, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit()
    process.mute = True
    process.report()
    process.mute = False
    process.report()
    assert other.rest() == [1000 - 2 - 2 * 8]


def test_a_sum_that_is_older_than_its_period_is_dropped() -> None:
    """The limit no longer counts it."""
    clock, (process,) = setup()
    for _ in range(10):
        process.hit()
    process.down = True
    clock.advance(61)
    process.report()
    process.down = False
    assert process.rest() == [1000]
    assert not process.limiter._leases._reports.accounts  # type: ignore[union-attr]


def test_a_sum_beyond_the_limit_is_counted() -> None:
    """Two processes consume the same rest. What exceeds a bucket delays later requests."""
    clock, (one, two) = setup(reported("60/minute", "token-bucket"), processes=2)
    for process in (one, two) * 2:
        process.hit()
    for process in (one, two):
        assert sum(process.hit().allowed for _ in range(100)) >= 56
    one.report()
    two.report()
    assert two.calls == ["apply", "apply", "apply", "correct"]
    clock.advance(50)
    assert not one.hit()
    clock.advance(10)
    assert one.hit()


def test_an_excess_whose_correction_fails_is_kept() -> None:
    """The next report tries to count it again."""
    _, (one, two) = setup(reported("60/minute", "token-bucket"), processes=2)
    for process in (one, two) * 30:
        process.hit()
    two.hit()
    one.report()
    assert one.rest() == [28]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two.shared, "correct", _fail)
        two.report()
    assert one.rest() == [28]
    two.report()
    assert two.calls == ["apply", "apply", "apply", "correct", "apply", "correct"]
    assert one.rest() == [0]


def _fail(*_: Any) -> Any:
    raise StoreError("it does not answer")


ENDPOINT = Rule(name="endpoint", limits="6/minute", key="path", algorithm="fixed-window")
ALL = Rule(name="all", limits="1000/minute", key=[], lease="5%", algorithm="fixed-window")


@both
def test_a_request_with_other_limits_makes_one_call(is_async: bool) -> None:
    """The exact limit is asked. When it rejects, neither the account nor the lease has consumed anything."""
    _, (process,) = setup(reported(), ALL, ENDPOINT)
    for count in range(1, 7):
        left = [each.remaining for each in process.hit(is_async=is_async).decisions]
        assert left == [1000 - count, 1000 - count, 6 - count]
    assert process.calls == ["apply"] * 6
    for _ in range(20):
        verdict = process.hit(is_async=is_async)
        assert [each.remaining for each in verdict.decisions] == [994, 994, 0]
        assert [each.rule for each in verdict.rejected_by] == ["endpoint"]
    process.limiter.close()
    assert process.rest() == [994, 994, 0]


def test_the_call_of_a_request_that_another_limit_rejects_opens_no_consumption() -> None:
    """The store has counted nothing, and has shown the rest."""
    _, (process,) = setup(reported(), Rule(name="endpoint", limits="1/minute", key="path", algorithm="fixed-window"))
    process.hit()
    assert not process.hit()
    process.hit(path="/another")
    assert not process.hit()
    process.report()
    assert process.rest() == [998, 0]


def test_a_local_rejection_makes_no_call() -> None:
    """No other limit of the request is asked or consumed."""
    _, (process,) = setup(reported("10/minute"), ALL, Rule(name="many", limits="1000/minute", key="path"))
    while verdict := process.hit():
        process.calls.clear()
    assert [each.rule for each in verdict.decisions] == ["api"]
    assert not process.calls
    process.limiter.close()
    assert process.rest() == [0, 990, 990]


@both
def test_a_failed_call_puts_back_what_was_consumed_here(is_async: bool) -> None:
    """The policy decides the whole request. An account that the call would have opened stays closed."""
    _, (process,) = setup(reported(), ENDPOINT)
    process.hit(is_async=is_async)
    process.down = True
    assert process.hit(is_async=is_async).decisions[0].local
    assert not process.limiter._leases._reports.accounts  # type: ignore[union-attr]
    process.down = False
    for _ in range(3):
        process.hit(is_async=is_async)
    process.down = True
    assert process.hit(is_async=is_async).decisions[0].local
    process.down = False
    process.limiter.close()
    assert process.rest() == [996, 2]


@both
def test_refunds_and_settlements_stay_here(is_async: bool) -> None:
    """They change the sum of the next report."""
    _, (process, other) = setup(processes=2)
    verdicts = [process.hit(10, is_async=is_async) for _ in range(5)]

    async def correct() -> None:
        await process.limiter.arefund(verdicts[2])
        await process.limiter.asettle(verdicts[3], 100)

    if is_async:
        asyncio.run(correct())
    else:
        process.limiter.refund(verdicts[2])
        process.limiter.settle(verdicts[3], 100)
    assert process.calls == ["apply"] * 2
    assert process.hit().decisions[0].remaining == 1000 - 20 - 100 - 10 - 1
    process.report()
    assert other.rest() == [1000 - 131]


def test_a_refund_after_the_report_lowers_the_next_sum() -> None:
    """A key that is idle then sends it as a refund."""
    _, (process, other) = setup(processes=2)
    verdicts = [process.hit(10) for _ in range(5)]
    process.report()
    process.limiter.refund(verdicts[4])
    process.hit(4)
    process.report()
    assert other.rest() == [1000 - 50]
    assert process.hit(0).decisions[0].remaining == 1000 - 44
    process.report()
    process.report()
    assert other.rest() == [1000 - 44]
    assert process.calls[-1] == "correct"


def test_a_refund_of_a_key_without_an_account_goes_to_the_store() -> None:
    """With the corrections of other rules, in one call."""
    _, (process,) = setup(reported(), ENDPOINT)
    process.limiter.refund(process.hit())
    verdicts = [process.hit() for _ in range(2)]
    process.limiter.refund(verdicts[1])
    assert process.calls == ["apply", "correct", "apply", "apply", "correct"]
    process.limiter.close()
    assert process.rest() == [999, 5]


def test_a_refund_that_the_store_does_not_make_changes_nothing_here() -> None:
    """The limits of a request are refunded together."""
    _, (process,) = setup(reported(), ENDPOINT)
    verdicts = [process.hit() for _ in range(3)]
    process.down = True
    process.limiter.refund(verdicts[2])
    process.down = False
    assert process.hit().decisions[0].remaining == 996


@both
def test_close_reports_the_rest(is_async: bool) -> None:
    """Without a reply, the sums are lost."""
    _, (process, other) = setup(processes=2)
    for _ in range(100):
        process.hit()
    process.down = is_async
    asyncio.run(process.limiter.aclose()) if is_async else process.limiter.close()
    assert other.rest() == [998 if is_async else 900]


@both
def test_close_sends_refunds(is_async: bool) -> None:
    """Of requests that were reported, even when the key is still busy."""
    _, (process, other) = setup(processes=2)
    verdicts = [process.hit(10) for _ in range(10)]
    process.report()
    process.limiter.refund(verdicts[9])
    process.hit(1)
    asyncio.run(process.limiter.aclose()) if is_async else process.limiter.close()
    assert other.rest() == [1000 - 91]


@both
def test_close_waits_for_the_report_of_the_thread(is_async: bool) -> None:
    """When that report fails, its sum is in the last one."""
    _, (process, other) = setup(processes=2)
    for _ in range(100):
        process.hit()
    link: Any = process.limiter._leases
    (report,) = link._reports_of(list(link._reports.accounts.values()))

    def fail(_: float) -> None:
        with suppress(StoreError), link._keeping(report):
            raise StoreError("it does not answer")

    async def afail(pause: float) -> None:
        fail(pause)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ratelimit_mw.limiter.reporter.time.sleep", fail)
        patch.setattr("ratelimit_mw.limiter.reporter.asyncio.sleep", afail)
        asyncio.run(process.limiter.aclose()) if is_async else process.limiter.close()
    assert other.rest() == [900]


def test_aclose_reports_the_rest_with_its_excess() -> None:
    """Including the part that exceeds the limit."""
    _, (one, two) = setup(reported("60/minute", "token-bucket"), processes=2)
    for process in (one, two) * 31:
        process.hit()
    for process in (one, two):
        asyncio.run(process.limiter.aclose())
    assert two.calls[-2:] == ["apply", "correct"]


def test_a_reset_forgets_what_was_not_reported() -> None:
    """The next hit asks the store. A request from before puts nothing back."""
    _, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit()
    link: Any = process.limiter._leases
    (account,) = link._reports.accounts.values()
    process.limiter.reset("api", WHO)
    link._reopen(account).add(-1)
    process.report()
    assert other.rest() == [1000]
    assert process.hit().decisions[0].remaining == 999


def test_a_forked_child_reports_nothing_of_its_parent() -> None:
    """Its first hit asks the store."""
    _, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit()
    forksafe._in_child()
    process.report()
    assert process.hit().decisions[0].remaining == 997
    assert other.rest() == [997]


def test_accounts_are_bounded() -> None:
    """Keys beyond 10,000 are exact."""
    _, (process,) = setup()
    for i in range(10_001):
        for _ in range(3):
            process.hit(ip=str(i))
    assert len(process.limiter._leases._reports.accounts) == 10_000  # type: ignore[union-attr]
    assert len(process.calls) == 2 * 10_000 + 3


def test_an_account_serves_only_its_own_limit() -> None:
    """Limits of several plans may count under one key. The others report it, and ask the store."""
    _, (process,) = setup(reported("100/minute", per={"plan": {"pro": ["1000/minute"]}}))
    for _ in range(50):
        process.hit(plan="pro")
    process.calls.clear()
    assert [process.hit(plan="free").decisions[0].remaining for _ in range(2)] == [49, 48]
    assert process.calls == ["apply"] * 3
    process.report()
    assert process.hit(plan="free").decisions[0].remaining == 47


@both
@pytest.mark.parametrize("consistency", ["exact", "leased", "reported"])
def test_a_sum_is_reported_before_a_changed_limit_decides(consistency: Any, is_async: bool) -> None:
    """New settings may lower a limit while a process has requests of a key that it has not reported."""
    _, (process,) = setup()
    for _ in range(300):
        process.hit(is_async=is_async)
    rule = Rule(name="api", limits="500/minute", algorithm="fixed-window", consistency=consistency)
    process.limiter.rules = Limiter([rule], process, settings=Settings(fleet_size=1)).rules
    assert sum(process.hit(is_async=is_async).allowed for _ in range(300)) == 200


def test_a_damaged_key_starts_anew() -> None:
    """Its sum is dropped, and the other keys keep theirs."""
    _, (process, other) = setup(processes=2)
    for _ in range(10):
        process.hit()
        process.hit(ip="192.0.2.8")
    key = next(iter(process.limiter._leases._reports.accounts))  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patch:

        def damaged(*_: Any) -> Any:
            raise StateError("damaged", [key])

        patch.setattr(process.shared, "apply", damaged)
        process.report()
    process.report()
    assert (other.rest(), other.rest(ip="192.0.2.8")) == ([998], [990])


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


def test_a_short_period_that_a_function_returns_is_exact() -> None:
    """Even where the rule has its consistency from the defaults."""
    rule = Rule(name="api", limits=lambda ip: ["1000/minute", "20/500ms"], algorithm="fixed-window")
    process = Process(SharedStore(), ManualClock(1_000_020.0), rule, defaults={"consistency": "reported"})
    assert [process.hit().allowed for _ in range(21)] == [True] * 20 + [False]
    assert process.calls == ["apply"] * 21
    process.report()
    assert process.rest() == [980, 0]


def test_the_memory_store_has_no_reports() -> None:
    """One process: the option is accepted and means nothing."""
    limiter = Limiter([reported("5/minute")], clock=ManualClock(1_000_020.0))
    assert [limiter.hit(WHO).allowed for _ in range(6)] == [True] * 5 + [False]
    limiter.close()


class Traffic:
    """Requests of several processes at random times, with late, failed and missing reports."""

    def __init__(self, seed: int, processes: int, amount: int, dies: bool) -> None:
        self.chance = random.Random(seed)
        self.clock, self.processes = setup(reported(f"{amount}/minute"), processes=processes)
        self.weights = [self.chance.choice((1, 1, 5, 50)) for _ in range(processes)]
        self.dies, self.lost = dies, 0
        self.admitted, self.own, self.since = ([0] * processes for _ in range(3))
        """What each process has admitted: all, since the last reply of the store, and until its last admission."""

    def run(self, requests: int) -> None:
        for step in range(requests):
            (i,) = self.chance.choices(range(len(self.processes)), self.weights)
            if self.chance.random() < 0.02:
                self.report(i)
            if self.chance.random() < 0.1:
                self.clock.advance(self.chance.choice((0.001, 0.01, 0.09)))
            if self.dies and step == requests // 2:
                self.die(i)
            self.admit(i, self.chance.choice((1, 1, 1, 4)))

    def report(self, i: int) -> None:
        process, before = self.processes[i], len(self.processes[i].calls)
        process.down = self.chance.random() < 0.2
        process.report()
        if len(process.calls) > before and not process.down:
            self.own[i] = 0
        process.down = False

    def admit(self, i: int, cost: int) -> None:
        before = len(self.processes[i].calls)
        is_allowed = self.processes[i].hit(cost).allowed
        if len(self.processes[i].calls) > before:
            self.own[i] = 0
        if is_allowed:
            self.admitted[i] += cost
            self.own[i] += cost
            self.since[i] = self.own[i]

    def die(self, i: int) -> None:
        """Replace a process. The store never counts what it has not reported."""
        self.lost += sum(each.unsent for each in self.processes[i].limiter._leases._reports.accounts.values())  # type: ignore[union-attr]
        self.processes[i] = Process(self.processes[0].shared, self.clock, reported("1/minute"))
        self.processes[i].limiter.rules = self.processes[i - 1].limiter.rules


@pytest.mark.parametrize("seed", range(20))
def test_the_excess_is_at_most_what_the_other_processes_have_not_reported(seed: int) -> None:
    """Each process admits at most the rest that the store showed it last, so the excess is below W - 1 such rests."""
    traffic = Traffic(seed, processes=2 + seed % 5, amount=300, dies=False)
    traffic.run(1500)
    total = sum(traffic.admitted)
    bound = sum(traffic.since) - min(traffic.since)
    assert 300 <= total <= 300 + bound
    for process in traffic.processes:
        process.report()
    assert traffic.processes[0].rest() == [0]


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_dies_loses_its_last_sum(seed: int) -> None:
    """The others admit it once more, and no more than that."""
    traffic = Traffic(seed, processes=4, amount=1_000_000, dies=True)
    traffic.run(1500)
    for process in traffic.processes:
        process.limiter.close()
    assert traffic.processes[0].rest() == [1_000_000 - sum(traffic.admitted) + traffic.lost]


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
