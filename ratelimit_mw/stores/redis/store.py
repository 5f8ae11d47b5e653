"""``RedisStore``: states in a Redis or a Valkey, changed by one script call a request.

The server's clock decides unless a time is given. Blocking calls use one connection each from those that are idle;
on an event loop requests share calls. Nothing is sent twice, except after the server has said that it knows no script.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from ...decision import Correction, Decision, Hit
from ...errors import ConfigError, StoreError
from ..base import Store
from .address import Address, ParsedAddress, tls_of
from .client.cluster import Cluster
from .client.errors import problem
from .client.server import Server
from .client.slots import slot_of
from .event_loop import Side
from .message import Hits, Keys, Known, Message, Request, answers, least
from .steps import Flow, Tools, applied, corrected

__all__ = ["RedisStore", "open_address"]

T = TypeVar("T")


class RedisStore(Store):
    """States in a server that all processes share.

    ``address`` is a text such as ``redis://localhost:6379/0``; ``prefix`` starts every key; no call takes longer than
    ``timeout_us``.
    """

    def __init__(self, address: str | Address, prefix: str = "rl:", timeout_us: int = 50_000) -> None:
        if type(timeout_us) is not int or timeout_us < 1:
            raise ConfigError(f"timeout_us is a whole number of microseconds from 1 on; got {timeout_us!r}")
        self._address = Address.of(urlsplit(address)) if isinstance(address, str) else address
        self._timeout = timeout_us / 1_000_000
        self._name = Keys(prefix)
        self._known = Known()
        self._server = (Cluster if self._address.cluster else Server)(self._address)
        self._sides: dict[asyncio.AbstractEventLoop, Side] = {}

    # -- blocking ------------------------------------------------------------------------------------------

    def apply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        deadline = time.monotonic() + self._timeout
        if self._is_plain(hits):
            found: list[Decision] = self._ask(Hits(hits, now, consume, least(now)), deadline)
            return found
        return self._carry_out(applied(hits, now, consume, self._tools(deadline, time.monotonic)), deadline)

    def correct(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        deadline = time.monotonic() + self._timeout
        return self._carry_out(corrected(changes, now, self._tools(deadline, time.monotonic)), deadline)

    def forget(self, keys: Iterable[str]) -> None:
        names = [self._name(key) for key in keys]
        try:
            if names:
                self._server.delete(names, time.monotonic() + self._timeout)
        except Exception as error:
            raise problem(error) from error

    def ping(self) -> None:
        """``StoreError`` unless every server of the store takes a write now."""
        try:
            self._server.ping(self._sample, time.monotonic() + self._timeout)
        except Exception as error:
            raise problem(error) from error

    def close(self) -> None:
        self._server.close()

    def _ask(self, request: Request, deadline: float) -> Any:
        message = Message(self._known, self._name)
        try:
            request.join(message)
            (answer,) = answers((request,), self._server.ask(message, deadline))
        except Exception as error:
            raise problem(error) from error
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _carry_out(self, flow: Flow[T], deadline: float) -> T:
        try:
            request = next(flow)
            while True:
                try:
                    answer = self._ask(request, deadline)
                except StoreError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(answer)
        except StopIteration as done:
            return cast(T, done.value)

    # -- awaitable -----------------------------------------------------------------------------------------

    async def aapply(self, hits: Sequence[Hit], now: int | None = None, consume: bool = True) -> list[Decision]:
        side = self._side()
        due = side.loop.time() + self._timeout
        if self._is_plain(hits):
            found: list[Decision] = await side.ask(Hits(hits, now, consume, least(now)), due)
            return found
        return await side.carry_out(applied(hits, now, consume, self._tools(due, side.loop.time)), due)

    async def acorrect(self, changes: Sequence[Correction], now: int | None = None) -> list[int]:
        side = self._side()
        due = side.loop.time() + self._timeout
        return await side.carry_out(corrected(changes, now, self._tools(due, side.loop.time)), due)

    async def aforget(self, keys: Iterable[str]) -> None:
        names = [self._name(key) for key in keys]
        try:
            if names:
                async with asyncio.timeout(self._timeout):
                    await self._side().server.delete(names)
        except Exception as error:
            raise problem(error) from error

    async def aping(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._side().server.ping(self._sample)
        except Exception as error:
            raise problem(error) from error

    async def aclose(self) -> None:
        side = self._sides.pop(asyncio.get_running_loop(), None)
        if side is not None:
            await side.server.aclose()
        self.close()

    def _side(self) -> Side:
        loop = asyncio.get_running_loop()
        side = self._sides.get(loop)
        if side is None:
            for ended in [each for each in list(self._sides) if each.is_closed()]:
                self._sides.pop(ended, None)
            side = self._sides[loop] = Side(self._address, self._timeout, self._known, self._name)
        return side

    # -- both ----------------------------------------------------------------------------------------------

    def _is_plain(self, hits: Sequence[Hit]) -> bool:
        """Whether one call answers them."""
        for hit in hits:
            if self._known[hit[0]] is None:
                return False
        return len(hits) == 1 or (not self._address.cluster and len(hits) > 1)

    def _tools(self, due: float, clock: Callable[[], float]) -> Tools:
        place = self._slot if self._address.cluster else _one_place
        return Tools(self._known, place, lambda: clock() < due)

    def _sample(self, number: int) -> bytes:
        return self._name(f"ping{number}")

    def _slot(self, key: str) -> int:
        return slot_of(self._name(key))


def _one_place(_key: str) -> int:
    return 0


def open_address(parsed: ParsedAddress, timeout_us: int) -> RedisStore:
    """The store at an address that was read."""
    tls = None if parsed.tls is None else tls_of(parsed.tls)
    return RedisStore(replace(parsed.address, tls=tls), parsed.prefix, timeout_us)
