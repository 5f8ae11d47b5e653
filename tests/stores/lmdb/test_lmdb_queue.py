"""The calls of an event loop that wait for the lock of the LMDB store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from lmdb_kit import held_elsewhere

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.lmdb.lock import FileLock, LockQueue


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FileLock]:
    lock = FileLock(tmp_path / "lock")
    yield lock
    assert lock.try_acquire(), "the lock is free again"
    lock.release()
    lock.close()


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def waiting(queue: LockQueue, works: Sequence[object]) -> list[asyncio.Task[object]]:
    """A task for each piece of work, all of them in the queue."""
    tasks = [asyncio.ensure_future(queue.run(work, 20)) for work in works]  # type: ignore[arg-type]
    await turns(3)
    return tasks


def on_a_loop(test: Callable[[FileLock, LockQueue], Awaitable[None]]) -> Callable[[FileLock], None]:
    """Run a test on an event loop."""

    def run(lock: FileLock) -> None:
        async def with_queue() -> None:
            await test(lock, LockQueue(lock))

        asyncio.run(with_queue())

    run.__doc__ = test.__doc__
    return run


@on_a_loop
async def test_free_lock_is_taken_and_released(lock: FileLock, queue: LockQueue) -> None:
    """A single call does not wait, and holds the lock while it works."""
    assert not await queue.run(lock.try_acquire, 0)


@on_a_loop
async def test_call_that_times_out_does_no_work(lock: FileLock, queue: LockQueue) -> None:
    """The event loop continues meanwhile, and the work is not done later."""
    done: list[int] = []
    with held_elsewhere(lock):
        calls = asyncio.gather(*(queue.run(lambda: done.append(1), 0.02) for _ in range(3)), return_exceptions=True)
        await turns(100)
        assert [type(result) for result in await calls] == [StoreError] * 3
    await queue.run(lambda: done.append(2), 0)
    assert done == [2]


@on_a_loop
async def test_thread_with_the_lock_uses_up_no_budget(lock: FileLock, queue: LockQueue) -> None:
    """The thread lives, and may only lack the GIL."""
    assert await asyncio.to_thread(lock.try_acquire)
    call = asyncio.create_task(queue.run(lambda: "done", 0.02))
    await asyncio.sleep(0.1)
    assert not call.done()
    lock.release()
    assert await call == "done"


@on_a_loop
async def test_call_with_the_lock_runs_all_waiting_calls(lock: FileLock, queue: LockQueue) -> None:
    """Calls run in their order. Each call has its own result or its own error."""
    order: list[int] = []

    def work(number: int) -> int:
        order.append(number)
        assert not lock.try_acquire()
        return 10 // (number - 2)

    assert lock.try_acquire()
    tasks = await waiting(queue, [partial(work, number) for number in range(4)])
    lock.release()
    assert await queue.run(lambda: work(12), 0) == 1
    assert order == [12, 0, 1, 2, 3], "a new call that gets the lock serves the waiting calls"
    first, second, third, fourth = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, second, type(third), fourth) == (-5, -10, ZeroDivisionError, 10)


@on_a_loop
async def test_cancelled_call_is_not_run_and_delays_no_other(lock: FileLock, queue: LockQueue) -> None:
    """Even when the cancelled call was the one that tried the lock for all."""
    done: list[int] = []
    assert lock.try_acquire()
    tasks = await waiting(queue, [partial(done.append, number) for number in range(4)])
    for task in tasks[::2]:
        task.cancel()
    await turns(3)
    lock.release()
    await asyncio.gather(*tasks[1::2])
    assert done == [1, 3]


def test_error_of_a_cancelled_call_is_not_logged(lock: FileLock, caplog: pytest.LogCaptureFixture) -> None:
    """A call that fails and is cancelled in the same turn leaves no "exception was never retrieved" behind."""

    async def scenario() -> None:
        queue = LockQueue(lock)
        assert lock.try_acquire()
        (task,) = await waiting(queue, [lambda: 1 // 0])
        lock.release()
        await queue.run(int, 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert not caplog.records
