"""Sharing trips to a server on an event loop: requests that arrive while calls are out join the next one.

There is no timer to wait for company: a lone request leaves at once. Where the last one was alone, too, it makes its
call itself; else a task makes it for all that come in the same turn of the loop. A call that fails fails its own
members only, and each member waits no longer than it would alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Any, Final, cast

from hiredis import ReplyError

from ...errors import StoreError
from .client.errors import is_split, late, problem
from .client.timeout import Budget
from .message import Message, Request, answers

__all__ = ["Batcher"]

_MOST: Final = 256  # members of one call: about a millisecond of the server's time
_WORTHWHILE: Final = 32  # so many waiting are worth a call of their own while others are out
_AT_ONCE: Final = 4
_SAME: Final = 0.005  # seconds: members that are due within so much of each other are due together


_Member = tuple[Request, "asyncio.Future[Any]", float]
"""What is asked, the answer to come, and until when, in the loop's time."""


class Batcher:
    """The calls to one place."""

    def __init__(self, ask: Callable[[Message], Awaitable[Any]], message: Callable[[], Message]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ask = ask
        self._message = message
        self._waiting: list[_Member] = []
        self._out: set[asyncio.Task[None]] = set()
        self._alone_out = False
        self._budget = Budget(self._loop)
        self._quiet = True  # the last to leave was alone

    @property
    def idle(self) -> bool:
        return not self._out and not self._alone_out

    def join(self, request: Request, due: float) -> Awaitable[Any]:
        """The answer to come; ``StoreError`` when it does not by ``due``."""
        out = len(self._out) + self._alone_out
        if out == 0 and self._quiet and not self._waiting:
            return self._alone(request, due)
        future = self._loop.create_future()
        self._waiting.append((request, future, due))
        if out == 0 or (len(self._waiting) >= _WORTHWHILE and out < _AT_ONCE):
            self._leave()
        return future

    async def _alone(self, request: Request, due: float) -> Any:
        """A call within its request's own task: the loop has no other to begin and to wake."""
        self._alone_out = True
        try:
            with self._budget.until(due):
                (answer,) = await self._answers([request])
        except StoreError:
            raise
        except Exception as error:
            raise problem(error) from error
        finally:
            self._alone_out = False
            if self._waiting and not self._out:
                self._leave()
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _leave(self) -> None:
        # The task begins when all that is ready now has run: those who came together leave together.
        self._out.add(self._loop.create_task(self._go()))

    async def _go(self) -> None:
        """Call after call, as long as somebody waits."""
        try:
            while members := self._boarded():
                self._quiet = len(members) == 1
                await self._call(members)
        finally:
            self._out.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _boarded(self) -> list[_Member]:
        """Who goes next: half of those that wait, so that the server and this process work at the same time."""
        share = min(_MOST, max(_WORTHWHILE, (len(self._waiting) + 1) // 2))
        boarded, self._waiting[:share] = self._waiting[:share], []
        return boarded

    async def _call(self, members: list[_Member]) -> None:
        now = self._loop.time()
        members = [member for member in members if not _is_over(member, now)]
        if not members:
            return
        dues = [due for _, _, due in members]
        watch = _Watch(self._loop, members) if max(dues) - min(dues) > _SAME else None
        try:
            async with asyncio.timeout_at(max(dues)):
                found = await self._answers([request for request, _, _ in members])
        except asyncio.CancelledError:  # the loop is being closed
            for _, future, _ in members:
                future.cancel()
            raise
        except Exception as error:
            found = [problem(error) for _ in members]
        finally:
            if watch is not None:
                watch.stop()
        for (_, future, _), answer in zip(members, found, strict=True):
            if not future.done():
                _settle(future, answer)

    async def _answers(self, requests: list[Request]) -> list[Any]:
        message = self._message()
        for request in requests:
            request.join(message)
        try:
            return answers(requests, await self._ask(message))
        except ReplyError as error:
            if not is_split(error) or len(requests) == 1:
                raise
        # Nothing was carried out. Each alone has its keys in one place.
        return await asyncio.gather(*map(self._answer, requests))

    async def _answer(self, request: Request) -> Any:
        try:
            return (await self._answers([request]))[0]
        except Exception as error:
            return problem(error)


def _is_over(member: _Member, now: float) -> bool:
    """Whether nobody waits for the answer any more: nothing is consumed for those."""
    _, future, due = member
    if due <= now and not future.done():
        future.set_exception(late())
    return future.done()


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if isinstance(answer, StoreError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class _Watch:
    """Fails members that are due while their call is still out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, members: Sequence[_Member]) -> None:
        self._loop = loop
        self._members = sorted(members, key=itemgetter(2))
        self._handle = loop.call_at(self._members[0][2], self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._members = [member for member in self._members if not _is_over(member, now)]
        if self._members:
            self._handle = self._loop.call_at(self._members[0][2], self._look)

    def stop(self) -> None:
        self._handle.cancel()
