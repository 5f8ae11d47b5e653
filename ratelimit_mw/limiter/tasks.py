"""Work on an event loop that completes even when its caller is cancelled, and the results of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import StoreError
from ..runtime.blocking import Call, blocking_call, is_on_event_loop
from ..stores.budget import take_error

Result = TypeVar("Result")


class Tasks:
    """The tasks of a limiter. ``waits``: whether its store makes calls, which an event loop awaits."""

    def __init__(self, waits: bool) -> None:
        self.waits = waits
        self.running: set[asyncio.Future[Any]] = set()

    @property
    def must_not_wait(self) -> bool:
        """Whether this thread runs an event loop that a call of the store would block."""
        return self.waits and is_on_event_loop()

    def start(
        self, work: Coroutine[Any, Any, Result], if_cancelled: Callable[[], object] | None = None
    ) -> asyncio.Future[Result]:
        """Start a task.

        ``if_cancelled`` does the work instead when the task is cancelled. An async view of Flask, or of Django under
        WSGI, has an event loop of its own. That event loop cancels tasks at its end.
        """
        task = asyncio.ensure_future(work)
        self.running.add(task)  # an event loop holds its tasks weakly
        task.add_done_callback(self.running.discard)
        if if_cancelled is not None:
            task.add_done_callback(lambda task: if_cancelled() if task.cancelled() else None)
        return task

    async def join(self) -> None:
        """Wait for the tasks of this event loop."""
        loop = asyncio.get_running_loop()
        if tasks := [task for task in self.running if task.get_loop() is loop]:
            await asyncio.wait(tasks)


async def completed(task: asyncio.Future[Result]) -> Result:
    """Return the result of a task, which continues when the caller is cancelled; ``StoreError`` if the task was."""
    task.add_done_callback(take_error)
    await asyncio.wait((task,))
    if task.cancelled():  # which would look as if the caller was
        raise StoreError("the event loop has cancelled a call of the store")
    return task.result()


async def future_result(call: Call, future: Future[Result], seconds: float) -> Result:
    """Return the result of a thread, or raise ``TimeoutError``: block this thread, or await it on its event loop."""
    if call is blocking_call:
        return future.result(seconds)
    async with asyncio.timeout(seconds):  # ``wait_for`` may lose a cancellation before Python 3.12
        return await asyncio.wrap_future(future)
