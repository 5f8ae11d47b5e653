"""Giving back and charging through the limiter: once, in parts, late, and never more than was consumed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import examples
from reference_base import Answer
from shared_store import SharedStore
from traces import BUCKETS, CONTINUOUS, SPECS, answer

from ratelimit_mw import Limiter, Rule, Verdict
from ratelimit_mw.testing import ManualClock

KINDS = pytest.mark.parametrize("kind", SPECS)
WINDOWS = [kind for kind in SPECS if kind not in BUCKETS]
KEY = {"ip": "192.0.2.7"}


class Desk:
    """A limiter with one rule, "10/minute", and its clock."""

    def __init__(self, kind: str, limits: Any = "10/minute") -> None:
        self.clock = ManualClock(1_000_020.0)  # where a minute begins
        self.limiter = Limiter([Rule(name="desk", limits=limits, algorithm=SPECS[kind])], clock=self.clock)

    def hit(self, cost: int = 1) -> Verdict:
        return self.limiter.hit(KEY, cost)

    def left(self) -> int:
        return self.limiter.peek(KEY, 0).decisions[0].remaining

    def fingerprint(self) -> list[Answer]:
        """All that can be asked now, and in a while."""
        found = []
        for _ in range(5):
            found += [answer(self.limiter.peek(KEY, cost).decisions[0]) for cost in (0, 1, 5, 10)]
            self.clock.advance(13.7)
        return found


@KINDS
def test_a_refund_gives_back_once(kind: str) -> None:
    """The second refund of a verdict changes nothing, nor does one of a part after it."""
    desk = Desk(kind)
    first, second = desk.hit(4), desk.hit(3)
    desk.limiter.refund(second)
    desk.limiter.refund(second)
    assert desk.left() == 6
    desk.limiter.settle(second, 0)
    desk.limiter.refund(first)
    asyncio.run(desk.limiter.arefund(first))
    assert desk.left() == 10


@KINDS
@examples(40)
@given(data=st.data())
def test_settled_at_once_is_as_if_it_had_cost_that(kind: str, data: st.DataObject) -> None:
    """After any settlings, up and down, all answers are those of a hit of the last cost, even of more than fits."""
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


@KINDS
def test_settling_works_on_an_event_loop(kind: str) -> None:
    """``asettle`` is ``settle``."""
    desk = Desk(kind)
    asyncio.run(desk.limiter.asettle(desk.hit(8), 3))
    assert desk.left() == 7


@KINDS
def test_a_refund_after_the_window_has_passed_changes_nothing(kind: str) -> None:
    """When all that a hit consumed has come back by itself, giving it back again would let too much pass."""
    desk = Desk(kind)
    old = desk.hit(10)
    desk.clock.advance(120)
    assert desk.hit(10).allowed
    desk.limiter.refund(old)
    assert desk.left() == 0
    assert not desk.hit()


@KINDS
def test_ten_reservations_given_back_late_let_ten_pass_and_not_twenty(kind: str) -> None:
    """Whenever they come back, one limit's worth passes at once: all of it at once or once it has come back by itself.

    Between, a continuous bucket takes each reservation for the one that has drained: fewer may pass, never more.
    """
    for wait in (0, 3, 6, 30, 59, 60, 66, 600):
        desk = Desk(kind)
        reserved = [desk.hit() for _ in range(10)]
        desk.clock.advance(wait)
        for verdict in reversed(reserved):
            desk.limiter.refund(verdict)
        passed = sum(desk.hit().allowed for _ in range(20))
        assert passed == 10 or (kind in CONTINUOUS and 0 < wait < 60 and passed < 10), wait


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_a_bucket_gives_back_what_has_not_come_back_by_itself(kind: str) -> None:
    """Of 8 consumed 18 s ago, at one in 6 s, 5 are still missing: given back, the bucket is as full as without them."""
    desk = Desk(kind)
    verdict = desk.hit(8)
    other = desk.hit(2)
    desk.clock.advance(18)
    assert desk.left() == 3
    desk.limiter.refund(verdict)
    assert desk.left() == 8
    desk.limiter.refund(other)
    assert desk.left() == 8


def test_a_queue_gives_back_only_what_nobody_stands_on() -> None:
    """The place of a hit with others behind it stays taken, for their departures are fixed; the last one's is free."""
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


@pytest.mark.parametrize("kind", WINDOWS)
def test_each_part_is_given_back_where_it_was_counted(kind: str) -> None:
    """What was charged a window later than the hit comes back in its own window, the hit's own part no more."""
    desk = Desk(kind)
    verdict = desk.hit(2)
    desk.clock.advance(120)
    desk.limiter.settle(verdict, 5)
    assert desk.left() == 7
    desk.hit(4)
    desk.limiter.refund(verdict)
    assert desk.left() == 6


@KINDS
def test_who_consumed_nothing_gets_nothing_back(kind: str) -> None:
    """A rejected verdict, a peek and a look are given nothing back, and the first two are charged nothing."""
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


@KINDS
def test_all_limits_of_a_request_are_given_back(kind: str) -> None:
    """A verdict over two limits gives back on both, and is settled on both."""
    desk = Desk(kind, limits="10/minute; 20/hour")
    verdict = desk.hit(6)
    desk.limiter.settle(verdict, 9)
    assert [d.remaining for d in desk.limiter.peek(KEY, 0).decisions] == [1, 11]
    other = desk.hit(1)
    desk.limiter.refund(other)
    assert [d.remaining for d in desk.limiter.peek(KEY, 0).decisions] == [1, 11]


def test_what_was_charged_to_a_queue_is_given_back_while_nobody_stands_on_it() -> None:
    """Settled up and down again at once, a hit holds what it was settled to last."""
    desk = Desk("leaky-bucket-queue")
    verdict = desk.hit(2)
    desk.limiter.settle(verdict, 6)
    desk.limiter.settle(verdict, 3)
    assert desk.left() == 7


@KINDS
def test_what_was_charged_after_a_clock_went_back_is_given_back(kind: str) -> None:
    """It was counted at the time that the key had reached, so there it is undone."""
    desk = Desk(kind)
    verdict = desk.hit(2)
    desk.clock.advance(-30)
    desk.limiter.settle(verdict, 6)
    desk.limiter.settle(verdict, 3)
    assert desk.left() == 7


def test_what_was_charged_to_a_queue_that_had_run_empty_is_given_back() -> None:
    """Charged after the hit itself was served, nobody stands on it: 1 has drained, 2 of 6 stay, 4 come back."""
    desk = Desk("leaky-bucket-queue")
    verdict = desk.hit(1)
    desk.clock.advance(60)
    desk.limiter.settle(verdict, 7)
    desk.limiter.settle(verdict, 3)
    assert desk.left() == 8
    desk.limiter.refund(verdict)
    assert desk.left() == 10


def test_what_was_charged_behind_others_is_never_given_back_twice() -> None:
    """Charged where the account cannot know, behind others in a queue or in time, it may come back short: as stated."""
    queue = Desk("leaky-bucket-queue")
    verdict = queue.hit(2)
    queue.hit(1)
    queue.limiter.settle(verdict, 6)
    assert queue.left() == 3
    queue.limiter.settle(verdict, 3)
    assert queue.left() == 3

    window = Desk("fixed-window")
    verdict = window.hit(2)
    window.clock.advance(60)
    window.hit(1)
    window.clock.advance(-30)
    window.limiter.settle(verdict, 6)
    assert window.left() == 5
    window.limiter.settle(verdict, 3)
    assert window.left() == 5


@KINDS
def test_who_settles_at_the_same_time_settles_once(kind: str) -> None:
    """Two that refund one verdict, or settle it, while the store is still at it: given back once, charged once."""

    async def scenario() -> None:
        clock = ManualClock(1_000_020.0)
        rate = Limiter([Rule(name="desk", limits="10/minute", algorithm=SPECS[kind])], SharedStore(), clock)

        async def left() -> int:
            return (await rate.apeek(KEY, 0)).decisions[0].remaining

        other, verdict = await rate.ahit(KEY, 5), await rate.ahit(KEY, 2)
        assert other
        await asyncio.gather(rate.asettle(verdict, 4), rate.asettle(verdict, 4))
        assert await left() == 1
        await asyncio.gather(rate.arefund(verdict), rate.asettle(verdict, 1), rate.arefund(verdict))
        await rate.arefund(verdict)
        assert await left() == 5

    asyncio.run(scenario())


def test_threads_that_refund_one_verdict_give_back_once() -> None:
    """However many there are."""
    desk = Desk("fixed-window")
    verdicts = [desk.hit() for _ in range(10)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [desk.limiter.refund(verdict) for verdict in verdicts[5:]])
    assert desk.left() == 5
