"""``consistency = "reported"``: busy keys are decided here, their sums are reported, and the excess has a bound."""

from __future__ import annotations

import asyncio

import pytest
from report_processes import ALL, ENDPOINT, WHO, Process, both, fail_call, reported, setup
from shared_store import SharedStore

from ratelimit_mw import Limiter, Rule
from ratelimit_mw.testing import ManualClock

pytestmark = pytest.mark.usefixtures("no_report_thread")


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
        patch.setattr(two.shared, "correct", fail_call)
        two.report()
    assert one.rest() == [28]
    two.report()
    assert two.calls == ["apply", "apply", "apply", "correct", "apply", "correct"]
    assert one.rest() == [0]


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
