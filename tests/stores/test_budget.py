"""The clocks of time budgets count waits for a server, and a pause of this process as a twentieth of the budget."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

import pytest

from ratelimit_mw.stores import budget
from ratelimit_mw.stores.budget import LoopClock, ThreadClock
from ratelimit_mw.stores.drivers import LoopDriver

BUDGET = 0.05
TURN = BUDGET / 20


class Hands:
    """A monotonic clock that a test sets."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    given = Hands()
    monkeypatch.setattr(budget, "machine", given)
    return given


def test_thread_that_lacks_the_gil_uses_up_little_of_the_budget(hands: Hands) -> None:
    """However long it lasts: nothing, and a twentieth of the budget while the thread waits for a reply."""
    clock = ThreadClock(BUDGET)
    hands.now += 30
    assert clock.now == 0

    def reply(_: float) -> None:
        hands.now += 30

    clock.wait(reply, BUDGET)
    assert clock.now == pytest.approx(TURN)
    clock.once(reply, clock.now + 0.02)
    assert clock.now == pytest.approx(TURN + 0.02)
    clock.wait(lambda _: setattr(hands, "now", hands.now + 0.001), BUDGET)
    assert clock.now == pytest.approx(TURN + 0.021)


def test_attempts_are_repeated_until_the_deadline(hands: Hands) -> None:
    """A silent server is checked twenty times in its budget. A reply in the meantime is read."""
    clock = ThreadClock(BUDGET)
    asked: list[float] = []

    def attempt(seconds: float) -> str:
        hands.now += seconds + 2  # 2 s without the GIL
        asked.append(seconds)
        if len(asked) % 28 == 0:
            return "reply"
        raise TimeoutError

    with pytest.raises(TimeoutError):
        clock.wait(attempt, BUDGET)
    assert 20 <= len(asked) <= 21
    assert sum(asked) == pytest.approx(BUDGET, abs=0.002)
    assert clock.wait(attempt, clock.now + BUDGET) == "reply"
    asked.clear()
    with pytest.raises(TimeoutError):
        clock.wait(attempt, clock.now - 1)
    assert asked == [0.001]


def test_error_of_another_thread_is_raised_at_once() -> None:
    """A credential provider that times out is not asked again and again."""
    clock, future = ThreadClock(60), Future[str]()
    future.set_exception(TimeoutError("the provider"))
    with pytest.raises(TimeoutError, match="the provider"):
        clock.result(future, clock.now + 60)
    with pytest.raises(TimeoutError):
        clock.result(Future(), clock.now)


def on_a_loop(test: Callable[[LoopClock, Hands], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on an event loop with the clock of that loop, whose own time a test sets."""

    def run() -> None:
        async def with_clock() -> None:
            loop, hands = asyncio.get_running_loop(), Hands()
            loop.time = hands.monotonic  # type: ignore[method-assign]
            await test(LoopClock(BUDGET), hands)

        asyncio.run(with_clock())

    run.__doc__ = test.__doc__
    return run


async def passes(hands: Hands, seconds: float) -> None:
    """Let a time pass, and the loop do all that is due then."""
    hands.now += seconds
    for _ in range(5):
        await asyncio.sleep(0)


def waiting() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


@on_a_loop
async def test_pause_of_the_loop_is_one_beat(clock: LoopClock, hands: Hands) -> None:
    """Code of the application holds the loop nineteen times, each time for an hour."""
    reply = clock.watch(waiting(), BUDGET)
    for turn in range(1, 20):
        await passes(hands, 3_600)
        assert clock.now == pytest.approx(turn * TURN)
    assert not reply.done()
    await passes(hands, 3_600)
    assert isinstance(reply.exception(), TimeoutError)


@on_a_loop
async def test_beats_keep_the_time_of_an_idle_loop(clock: LoopClock, hands: Hands) -> None:
    """A loop that wakes up late by less than a beat has the budget of a clock on the wall."""
    clock.watch(waiting(), 1)
    for _ in range(100):
        await passes(hands, 0.0005 + TURN / 2)
    assert clock.now == pytest.approx(100 * (0.0005 + TURN / 2), abs=2 * TURN)


@on_a_loop
async def test_each_future_ends_at_its_own_deadline(clock: LoopClock, hands: Hands) -> None:
    """Those that are done do not end. A clock without futures stops until the next one."""
    first, second, third = (clock.watch(waiting(), n * BUDGET) for n in (2, 1, 2))
    third.set_result("reply")
    for _ in range(21):
        await passes(hands, TURN)
    assert (first.done(), second.done(), third.result()) == (False, True, "reply")
    for _ in range(60):
        await passes(hands, TURN)
    assert first.done()
    assert clock.now == pytest.approx(2 * BUDGET, abs=2 * TURN)
    next_one = clock.watch(waiting(), clock.now + BUDGET)
    await passes(hands, TURN)
    assert not next_one.done()
    for _ in range(21):
        await passes(hands, TURN)
    assert isinstance(next_one.exception(), TimeoutError)


@on_a_loop
async def test_reply_that_was_read_in_the_last_turn_counts(clock: LoopClock, hands: Hands) -> None:
    """The deadline has passed, but the loop has the reply. Other calls still end at theirs."""
    reply, other = clock.watch(waiting(), TURN), clock.watch(waiting(), 2 * TURN)
    asyncio.get_running_loop().call_at(hands.now + TURN, reply.set_result, "reply")
    for _ in range(3):
        await passes(hands, TURN)
    assert await reply == "reply"
    assert isinstance(other.exception(), TimeoutError)


@on_a_loop
async def test_work_that_others_wait_for_goes_on(clock: LoopClock, hands: Hands) -> None:
    """``result`` leaves a task alone, and ``within`` ends it. The error of a task is raised."""
    ends = waiting()
    task = asyncio.ensure_future(ends)
    waits = [asyncio.create_task(clock.result(task, n * TURN)) for n in (1, 100)]
    bounded = asyncio.create_task(clock.within(asyncio.sleep(60), TURN))
    await passes(hands, 0)
    for _ in range(3):
        await passes(hands, TURN)
    assert isinstance(waits[0].exception(), TimeoutError)
    assert isinstance(bounded.exception(), TimeoutError)
    ends.set_result("reply")
    assert await waits[1] == "reply"
    with pytest.raises(ZeroDivisionError):
        await clock.within(asyncio.to_thread(lambda: 1 // 0), clock.now + 60)


@on_a_loop
async def test_cancelling_from_outside_stays_a_cancellation(clock: LoopClock, hands: Hands) -> None:
    """The client disconnected before the deadline."""
    task = asyncio.create_task(clock.within(asyncio.sleep(60), 60))
    await passes(hands, TURN)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_error_of_a_thread_after_its_deadline_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An outage would log each connection that fails late."""

    async def wait() -> None:
        way, late = LoopDriver(BUDGET), Future[None]()
        with pytest.raises(TimeoutError):
            await way.result(late, way.clock.now + TURN)
        late.set_exception(ConnectionError("late"))
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(wait())
    gc.collect()
    assert not caplog.records
