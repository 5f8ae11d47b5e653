"""The requests of one event loop at the same keys: while one is under way, those that come wait and go together.

There is no timer to wait for company: a request at whose keys nobody is leaves at once. Who has lost a race goes
again, with all that have come since. Each has its own time, and its own answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from ...decision import Decision
from ...errors import StoreError
from .batched_try import Request
from .steps import moment

__all__ = ["Line"]

_MOST: Final = 256  # requests of one try: some milliseconds in which the event loop does nothing else


class Line:
    """Requests whose keys are on the same servers: one that fails fails those who need it, and holds up nobody else.

    ``carry`` tries once for several of them.
    """

    def __init__(self, carry: Callable[[Sequence[Request]], Awaitable[None]]) -> None:
        self._carry = carry
        self._busy: set[bytes] = set()  # keys of those who are under way
        self._waiting: list[Request] = []
        self._awaited: set[bytes] = set()  # keys of those who wait
        self._out: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not (self._busy or self._waiting or self._out)

    def enter(self, tokens: Sequence[bytes]) -> bool:
        """Whether nobody is or waits at these keys; then they are taken until they are left."""
        if self._busy.isdisjoint(tokens) and self._awaited.isdisjoint(tokens):
            self._busy.update(tokens)
            return True
        return False

    def leave(self, tokens: Collection[bytes], again: bool = False) -> None:
        self._busy.difference_update(tokens)
        if not self._awaited.isdisjoint(tokens):
            self._call(again)

    async def decided(self, request: Request) -> list[Decision]:
        """What a request comes to that has to wait; ``TimeoutError`` when nobody answered it in its time."""
        self._wait([request])
        if request.lost:
            self._call(again=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(request.due - time.monotonic()):
                await request.answer
        return request.result()

    def _wait(self, requests: Sequence[Request]) -> None:
        self._waiting += requests
        self._awaited.update(*(request.tokens for request in requests))

    def _call(self, again: bool) -> None:
        # The task begins when all that is ready now has run: those who come together leave together.
        task = asyncio.get_running_loop().create_task(self._go(again))
        self._out.add(task)
        task.add_done_callback(self._back)

    async def _go(self, again: bool) -> None:
        """One try for all who can go; those who race with other processes pause first."""
        if again:
            await asyncio.sleep(moment().seconds)
        if boarded := self._boarded():
            await self._try(boarded)

    def _back(self, task: asyncio.Task[None]) -> None:
        self._out.discard(task)
        if task.cancelled():  # as all tasks of a loop that ends: who waits runs out of time, and nobody waits for them
            self._waiting, self._awaited = [], set()

    def _boarded(self) -> list[Request]:
        """Those who go next: nobody is at their keys, or waits for them since before they came."""
        passed, now = set(self._busy), time.monotonic()
        boarded: list[Request] = []
        waiting, self._waiting, self._awaited = self._waiting, [], set()
        for request in waiting:
            if request.is_over(now):
                continue
            if len(boarded) < _MOST and passed.isdisjoint(request.tokens):
                boarded.append(request)
            else:
                passed.update(request.tokens)
                self._wait([request])
        return boarded

    async def _try(self, requests: Sequence[Request]) -> None:
        """Try once. Those who have lost wait in front of those who have come meanwhile."""
        tokens = {token for request in requests for token in request.tokens}
        self._busy |= tokens
        losers: list[Request] = []
        try:
            losers = await self._losers(requests)
        finally:
            others, self._waiting = self._waiting, []
            self._wait(losers + others)
            self.leave(tokens, again=any(request.lost > 1 for request in losers))

    async def _losers(self, requests: Sequence[Request]) -> list[Request]:
        """Who of them has no answer after a try."""
        began = time.monotonic()
        try:
            await self._carry(requests)
        except StoreError as error:
            for request in requests:
                request.fail(error.__cause__ or error)
        losers = [request for request in requests if not request.answer.done()]
        for request in losers:
            request.longest = max(request.longest, time.monotonic() - began)
        return losers
