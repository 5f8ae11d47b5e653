"""A time budget for calls of which one is out at a time: ``asyncio.timeout_at`` at a fraction of its cost.

Nearly all calls end in time. So the timer is not set and cancelled for each: when it goes off, it looks whether the
call that is out then is due, and waits on if not.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, cast

__all__ = ["Budget"]


class Budget:
    """``with budget.until(due):`` raises ``TimeoutError`` when the block is not left by then, in the loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self._due = 0.0
        self._cancels = 0  # by others, when the block was entered
        self._is_over = False

    def until(self, due: float) -> Budget:
        self._due = due
        return self

    def __enter__(self) -> None:
        self._task = task = cast("asyncio.Task[Any]", asyncio.current_task(self._loop))
        self._cancels, self._is_over = task.cancelling(), False
        if self._timer is None or self._due < self._timer.when():
            self._set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self._is_over and task is not None and task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._due:
            self._set()
            return
        self._is_over = True
        self._task.cancel()
