"""Sharing trips to a server on an event loop: requests that arrive while calls are out join the next one.

There is no timer to wait for company: a lone request leaves at once. A call that fails fails its own members only, and
each member waits no longer than it would alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from ...errors import StoreError
from .message import Message, Request, answers
from .problems import late, problem

__all__ = ["Trips"]

_MOST: Final = 256  # members of one call: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # so many waiting are worth a call of their own while others are out
_AT_ONCE: Final = 4
_SAME: Final = 0.005  # seconds: members that are due within so much of each other are due together


class _Member(NamedTuple):
    request: Request
    future: asyncio.Future[Any]
    due: float


class Trips:
    """The calls to one place."""

    def __init__(
        self,
        ask: Callable[[Message], Awaitable[Any]],
        message: Callable[[], Message],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._message = message
        self._waiting: list[_Member] = []
        self._out: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not self._out

    def join(self, request: Request, due: float) -> asyncio.Future[Any]:
        """The answer to come, by ``due`` in the loop's time; ``StoreError`` when it does not."""
        future = self._loop.create_future()
        waiting, out = self._waiting, len(self._out)
        waiting.append(_Member(request, future, due))
        if out == 0 or (len(waiting) >= _WORTHWHILE and out < _AT_ONCE):
            self._out.add(self._loop.create_task(self._go()))
        return future

    async def _go(self) -> None:
        """Call after call, as long as somebody waits."""
        try:
            while self._waiting:
                members = self._waiting[:_MOST]
                del self._waiting[:_MOST]
                await self._call(members)
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._out.discard(task)

    async def _call(self, members: Sequence[_Member]) -> None:
        dues = [member.due for member in members]
        watch = _Watch(self._loop, members) if max(dues) - min(dues) > _SAME else None
        try:
            message = self._message()
            for member in members:
                member.request.join(message)
            async with asyncio.timeout_at(max(dues)):
                reply = await self._ask(message)
            found = answers([member.request for member in members], reply)
        except Exception as error:
            found = [problem(error) for _ in members]
        except asyncio.CancelledError:  # the loop is being closed
            for member in members:
                member.future.cancel()
            raise
        finally:
            if watch is not None:
                watch.stop()
        for (_, future, _), answer in zip(members, found, strict=True):
            if future.done():
                continue
            if isinstance(answer, StoreError):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class _Watch:
    """Fails members that are due while their call is still out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, members: Sequence[_Member]) -> None:
        self._loop = loop
        self._members = sorted(members, key=lambda member: member.due)
        self._handle = loop.call_at(self._members[0].due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        while self._members and self._members[0].due <= now:
            member = self._members.pop(0)
            if not member.future.done():
                member.future.set_exception(late())
        if self._members:
            self._handle = self._loop.call_at(self._members[0].due, self._look)

    def stop(self) -> None:
        self._handle.cancel()
