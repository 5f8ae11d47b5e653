"""Refund and settle through the limiter: once, in parts, late, and never more than was consumed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from calls import on_loop
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from reference_base import ReferenceResult
from shared_store import SharedStore
from tables import each
from traces import BUCKETS, CONTINUOUS, SPECS, result_of

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.testing import ManualClock

WINDOWS = [kind for kind in SPECS if kind not in BUCKETS]
KEY = {"ip": "192.0.2.7"}


class Desk:
    """A limiter with one rule, "10/minute", and its clock."""

    def __init__(self, kind: str, store: Any = None) -> None:
        self.clock = ManualClock(1_000_020.0)  # where a minute begins
        self.limiter = Limiter([Rule(name="desk", limits="10/minute", algorithm=SPECS[kind])], store, self.clock)

    def hit(self, cost: int = 1) -> Verdict:
        return self.limiter.hit(KEY, cost)

    def left(self) -> int:
        return self.limiter.peek(KEY, 0).decisions[0].remaining

    def fingerprint(self) -> list[ReferenceResult]:
        """All decisions now and in a while."""
        found = []
        for _ in range(5):
            found += [result_of(self.limiter.peek(KEY, cost).decisions[0]) for cost in (0, 1, 5, 10)]
            self.clock.advance(13.7)
        return found


@each("kind", SPECS)
def test_a_second_refund_changes_nothing(kind: str) -> None:
    """Nor does a refund of the part that is left."""
    desk = Desk(kind)
    first, second = desk.hit(4), desk.hit(3)
    desk.limiter.refund(second)
    desk.limiter.refund(second)
    assert desk.left() == 6
    desk.limiter.settle(second, 0)
    desk.limiter.refund(first)
    asyncio.run(desk.limiter.arefund(first))
    assert desk.left() == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
@examples(40)
@given(data=st.data())
def test_a_settled_hit_equals_a_hit_of_the_true_cost(kind: str, data: st.DataObject) -> None:
    """After any settlements, up and down, all decisions are those of a hit of the last cost."""
    settled, plain = Desk(kind), Desk(kind)
    for desk in (settled, plain):
        desk.hit(2)
        desk.clock.advance(7.5)
    verdict = settled.hit(8)
    costs = data.draw(st.lists(st.integers(0, 25), min_size=1, max_size=6))
    for cost in costs:
        settled.limiter.settle(verdict, cost)
    plain.limiter.settle(plain.hit(0), costs[-1])
    assert settled.fingerprint() == plain.fingerprint()


@each("kind", SPECS)
def test_late_refunds_never_allow_more_than_the_limit(kind: str) -> None:
    """Ten refunds at any time allow ten requests. Between, a continuous bucket may allow fewer, never more."""
    for wait in (0, 3, 6, 30, 59, 60, 66, 600):
        desk = Desk(kind)
        reserved = [desk.hit() for _ in range(10)]
        desk.clock.advance(wait)
        for verdict in reversed(reserved):
            desk.limiter.refund(verdict)
        passed = sum(desk.hit().allowed for _ in range(20))
        assert passed == 10 or (kind in CONTINUOUS and 0 < wait < 60 and passed < 10), wait
    desk = Desk(kind)
    old = desk.hit(10)
    desk.clock.advance(120)
    assert desk.hit(10)
    desk.limiter.refund(old)
    assert not desk.hit()


def test_a_queue_returns_only_its_last_place() -> None:
    """A place with others behind it stays taken, because their departures are fixed."""
    desk = Desk("leaky-bucket-queue")
    first, second, third = desk.hit(), desk.hit(), desk.hit()
    desk.limiter.refund(second)
    assert desk.left() == 7
    desk.limiter.refund(third)
    assert desk.left() == 8
    desk.clock.advance(3)
    desk.limiter.refund(first)
    assert desk.left() == 8
    assert desk.hit().delay == 9.0


@each("kind", WINDOWS)
def test_each_charge_is_returned_in_its_own_window(kind: str) -> None:
    """A charge of a later window is returned there, and the hit itself is not returned again."""
    desk = Desk(kind)
    verdict = desk.hit(2)
    desk.clock.advance(120)
    desk.limiter.settle(verdict, 5)
    assert desk.left() == 7
    desk.hit(4)
    desk.limiter.refund(verdict)
    assert desk.left() == 6


@each("kind", SPECS)
def test_a_verdict_without_cost_refunds_nothing(kind: str) -> None:
    """A rejected verdict, a peek and a hit of cost 0 refund nothing; the first two cannot be charged."""
    desk = Desk(kind)
    assert desk.hit(8)
    before = desk.left()
    peeked, rejected, look = desk.limiter.peek(KEY, 1), desk.limiter.peek(KEY, 9), desk.hit(0)
    for verdict in (peeked, rejected, look):
        desk.limiter.refund(verdict)
    for verdict in (peeked, rejected):
        desk.limiter.settle(verdict, 2)
    assert desk.left() == before
    desk.limiter.settle(look, 2)
    assert desk.left() == before - 2


@each("kind", SPECS)
def test_a_charge_after_a_clock_went_back_is_returned(kind: str) -> None:
    """It was counted at the time that the key had reached, and is undone there."""
    desk = Desk(kind)
    verdict = desk.hit(2)
    desk.clock.advance(-30)
    desk.limiter.settle(verdict, 6)
    desk.limiter.settle(verdict, 3)
    assert desk.left() == 7


def test_charges_of_a_queue_are_never_returned_twice() -> None:
    """Settled up and down, a hit holds the last cost. Behind others in the queue, it is returned short."""
    desk = Desk("leaky-bucket-queue")
    verdict = desk.hit(2)
    for cost in (6, 3):
        desk.limiter.settle(verdict, cost)
    assert desk.left() == 7
    desk.clock.advance(78)  # all has drained
    verdict = desk.hit(1)
    desk.clock.advance(60)
    for cost in (7, 3):  # the hit was served: 1 has drained, 2 of 6 stay
        desk.limiter.settle(verdict, cost)
    assert desk.left() == 8
    desk.limiter.refund(verdict)
    assert desk.left() == 10
    verdict = desk.hit(2)
    desk.hit(1)
    for cost in (6, 3):
        desk.limiter.settle(verdict, cost)
        assert desk.left() == 3


def test_a_charge_behind_others_in_time_is_never_returned_twice() -> None:
    """The clock went back into a window that has ended, so the charge counts in the next one."""
    desk = Desk("fixed-window")
    verdict = desk.hit(2)
    desk.clock.advance(60)
    desk.hit(1)
    desk.clock.advance(-30)
    for cost in (6, 3):
        desk.limiter.settle(verdict, cost)
        assert desk.left() == 5


@each("kind", SPECS)
@on_loop
async def test_concurrent_settlements_settle_once(kind: str) -> None:
    """Two tasks that refund or settle one verdict while the store decides change it once."""
    desk = Desk(kind, store=SharedStore())
    rate = desk.limiter

    other, verdict = await rate.ahit(KEY, 5), await rate.ahit(KEY, 2)
    assert other
    await asyncio.gather(rate.asettle(verdict, 4), rate.asettle(verdict, 4))
    assert desk.left() == 1
    await asyncio.gather(rate.arefund(verdict), rate.asettle(verdict, 1), rate.arefund(verdict))
    await rate.arefund(verdict)
    assert desk.left() == 5


def test_concurrent_threads_refund_once() -> None:
    """Eight threads refund the same verdicts."""
    desk = Desk("fixed-window")
    verdicts = [desk.hit() for _ in range(10)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [desk.limiter.refund(verdict) for verdict in verdicts[5:]])
    assert desk.left() == 5
