"""The clocks of time budgets stop while this process is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from ratelimit_mw.stores import budget
from ratelimit_mw.stores.budget import LoopClock, LoopTimeout, ThreadClock

BUDGET = 0.05


class Hands:
    """A monotonic clock that a test sets."""

    now = 1_000.0
    pause = 0.0
    """The seconds that pass after each look at the clock."""

    def monotonic(self) -> float:
        now = self.now
        self.now += self.pause
        return now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    given = Hands()
    monkeypatch.setattr(budget, "machine", given)
    return given


def test_thread_that_lacks_the_gil_uses_up_little_of_the_budget(hands: Hands) -> None:
    """However long it lasts: 0.5 ms of a budget of 50 ms, and 2.5 ms where it waited for a reply as well."""
    clock = ThreadClock(BUDGET)
    start = clock.time()
    for passed, shown in ((0.0003, 0.0003), (30.0, 0.0008), (0.0, 0.0008)):
        hands.now += passed
        assert clock.time() - start == pytest.approx(shown)

    def reply(_: float) -> None:
        hands.now += 30

    clock.wait(reply, start + BUDGET)
    assert clock.time() - start == pytest.approx(0.0033)


def test_wait_that_timed_out_counts_in_full(hands: Hands) -> None:
    """40 ms for a socket are 40 ms; the 30 s until the thread runs again are not."""
    clock = ThreadClock(BUDGET)
    start = clock.time()
    hands.now += 30
    assert clock.time(waited=0.04) - start == pytest.approx(0.04)


def test_attempts_are_repeated_until_the_deadline(hands: Hands) -> None:
    """A silent server is checked five times in its budget. A reply in the meantime is read."""
    clock = ThreadClock(BUDGET)
    asked: list[float] = []

    def attempt(seconds: float) -> str:
        hands.now += seconds + 2  # 2 s without the GIL
        asked.append(seconds)
        if len(asked) % 8 == 0:
            return "reply"
        raise TimeoutError

    with pytest.raises(TimeoutError):
        clock.wait(attempt, clock.time() + BUDGET)
    assert 5 <= len(asked) <= 6
    assert sum(asked) == pytest.approx(BUDGET, abs=0.002)
    asked[:] = [0.0] * 6
    assert clock.wait(attempt, clock.time() + BUDGET) == "reply"


def test_error_of_another_thread_is_raised_at_once() -> None:
    """A credential provider that times out is not asked again and again."""
    clock, future = ThreadClock(60), Future[str]()
    future.set_exception(TimeoutError("the provider"))
    with pytest.raises(TimeoutError, match="the provider"):
        clock.result(future, clock.time() + 60)
    with pytest.raises(TimeoutError):
        clock.result(Future(), clock.time())


def on_a_loop(test: Callable[[LoopClock], Any]) -> Callable[[], None]:
    """Run a test on an event loop, with the clock of that loop."""

    def run() -> None:
        async def with_clock() -> None:
            await test(LoopClock(BUDGET))

        asyncio.run(with_clock())

    run.__doc__ = test.__doc__
    return run


@on_a_loop
async def test_busy_loop_does_not_use_up_the_budget(clock: LoopClock) -> None:
    """Code of the application holds the loop for three times the budget, ten times."""
    with clock.timeout_at(clock.time() + BUDGET):
        for _ in range(10):
            time.sleep(3 * BUDGET)
            await asyncio.sleep(0)


@on_a_loop
async def test_clock_stops_while_a_beat_is_late(clock: LoopClock) -> None:
    """A call that starts on a busy loop has its whole budget. A busy turn counts as a twentieth of it."""
    hands = set_by_hand(clock)
    start = clock.time()
    with clock.timeout_at(start + 60):
        for turn in (1, 1, 2):  # the loop continues the task before it beats for the first time
            hands.now += 3 * BUDGET
            assert clock.time() - start == pytest.approx(turn * BUDGET / 20)
            await asyncio.sleep(0)
    assert clock.time() - start == pytest.approx(2 * BUDGET / 20)


@on_a_loop
async def test_pause_at_any_place_does_not_use_up_the_budget(clock: LoopClock) -> None:
    """The process is stopped for 30 s after each look at the clock, in the middle of a beat as well."""
    hands = set_by_hand(clock)
    start = clock.time()
    hands.pause = 30
    with clock.timeout_at(start + 60):
        for turn in range(1, 10):
            await asyncio.sleep(0)
            assert clock.time() - start <= turn * BUDGET / 20 + 1e-6
    hands.pause = 0


def set_by_hand(clock: LoopClock) -> Hands:
    """Let a test set the time of the running loop."""
    loop, hands = asyncio.get_running_loop(), Hands()
    loop.time = hands.monotonic  # type: ignore[method-assign]
    return hands


@on_a_loop
async def test_timeout_ends_a_block_that_waits(clock: LoopClock) -> None:
    """Blocks one after another and at the same time, each at its own deadline."""
    ended: list[int] = []

    async def wait(number: int, timeout: LoopTimeout) -> None:
        with pytest.raises(TimeoutError), timeout:
            await asyncio.sleep(60)
        ended.append(number)

    start = clock.time()
    await asyncio.gather(*(wait(n, clock.timeout_at(start + n * BUDGET)) for n in (3, 1, 2)))
    assert ended == [1, 2, 3]
    reused = clock.timeout_at(clock.time() + BUDGET)
    await wait(4, reused)
    with reused.until(clock.time() + 60):
        await asyncio.sleep(2 * BUDGET)
    assert clock.time() >= start + 4 * BUDGET - 0.001


@on_a_loop
async def test_reply_that_was_read_in_the_last_turn_counts(clock: LoopClock) -> None:
    """The deadline has passed, but the loop has the reply."""
    loop = asyncio.get_running_loop()
    reply = loop.create_future()
    with clock.timeout_at(clock.time()):
        loop.call_soon(reply.set_result, "reply")
        assert await reply == "reply"


@on_a_loop
async def test_block_that_gets_more_time_ends_later(clock: LoopClock) -> None:
    """The clock is turned back after the deadline has passed, and before the block has ended."""
    loop, start = asyncio.get_running_loop(), clock.time()

    async def wait() -> None:
        with clock.timeout_at(start):
            loop.call_at(loop.time(), clock.turn_back, start - BUDGET)
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await wait()
    assert loop.time() >= start + BUDGET


@on_a_loop
async def test_cancelling_from_outside_stays_a_cancellation(clock: LoopClock) -> None:
    """The client disconnected before the deadline."""

    async def wait() -> None:
        with clock.timeout_at(clock.time() + 60):
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(BUDGET)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
