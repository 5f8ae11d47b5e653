"""The calls of an event loop that wait for the LMDB store's lock."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratelimit_mw.stores.lmdb.lock import FileLock
from ratelimit_mw.stores.lmdb.queue import Line


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FileLock]:
    lock = FileLock(str(tmp_path / "lock"))
    yield lock
    assert lock.try_acquire(), "nobody has left it locked"
    lock.release()
    lock.close()


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def waiting(line: Line, works: list[object]) -> list[asyncio.Task[object]]:
    """A task for each piece of work, all of them in the line."""
    tasks = [asyncio.ensure_future(line.done(work, 20)) for work in works]  # type: ignore[arg-type]
    await turns(3)
    return tasks


def test_a_free_lock_is_taken_and_left_at_once(lock: FileLock) -> None:
    """A lone call waits for nobody, and holds the lock while it works."""

    async def scenario() -> bool:
        return not await Line(lock).done(lock.try_acquire, 0)

    assert asyncio.run(scenario())


def test_who_waits_too_long_is_told_and_the_loop_goes_on(lock: FileLock) -> None:
    """Its work is not done, then or later."""
    done: list[int] = []

    async def scenario() -> None:
        line = Line(lock)
        lock.acquire(0)
        calls = asyncio.gather(*(line.done(lambda: done.append(1), 0.02) for _ in range(3)), return_exceptions=True)
        await turns(100)
        assert [type(answer) for answer in await calls] == [TimeoutError] * 3
        lock.release()
        await line.done(lambda: done.append(2), 0)

    asyncio.run(scenario())
    assert done == [2]


def test_who_gets_the_lock_has_all_done_that_wait(lock: FileLock) -> None:
    """In the order in which they came; each has its own answer, or its own error."""
    order: list[int] = []

    def work(number: int) -> int:
        order.append(number)
        assert not lock.try_acquire()
        return 10 // (number - 2)

    async def scenario() -> list[object]:
        line = Line(lock)
        lock.acquire(0)
        tasks = await waiting(line, [lambda number=number: work(number) for number in range(4)])
        lock.release()
        assert await line.done(lambda: work(12), 0) == 1
        assert order == [12, 0, 1, 2, 3], "whoever comes when it is free serves those who wait"
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(scenario())
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [
        -5,
        -10,
        ZeroDivisionError,
        10,
    ]


def test_a_call_that_is_cancelled_is_not_done_and_holds_up_nobody(lock: FileLock) -> None:
    """Also when it was the one that asked for all."""
    done: list[int] = []

    async def scenario() -> None:
        line = Line(lock)
        lock.acquire(0)
        tasks = await waiting(line, [lambda number=number: done.append(number) for number in range(4)])
        for task in tasks[::2]:
            task.cancel()
        await turns(3)
        lock.release()
        await asyncio.gather(*tasks[1::2])

    asyncio.run(scenario())
    assert done == [1, 3]
