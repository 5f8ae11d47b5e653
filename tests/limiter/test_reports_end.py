"""Sums that are not reported yet when a process, a limit or an account ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from report_processes import WHO, both, reported, setup

from ratelimit_mw import Limiter, Rule, forksafe
from ratelimit_mw.errors import StateError, StoreError
from ratelimit_mw.settings import Settings

pytestmark = pytest.mark.usefixtures("no_report_thread")


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
        patch.setattr("ratelimit_mw.limiter.chain.reporter.time.sleep", fail)
        patch.setattr("ratelimit_mw.limiter.chain.reporter.asyncio.sleep", afail)
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
