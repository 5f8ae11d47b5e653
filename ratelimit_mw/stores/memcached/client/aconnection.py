"""Connections on an event loop: one for each server, shared by all requests, answered in the order they were sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, cast

from ...dns import resolve
from .protocol import Replies, WireError
from .servers import Server

__all__ = ["Links"]


class Waiting(NamedTuple):
    """A request on its way. ``done`` may have been cancelled: its answer still comes, and is read over."""

    replies: Replies
    done: asyncio.Future[None]
    since: float


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Waiting] = deque()
        self._transport: asyncio.Transport | None = None

    def ask(self, payload: bytes, replies: Replies) -> asyncio.Future[None]:
        """Send now; the future is done when all replies are there."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._transport is None:
            done.set_exception(ConnectionResetError("the connection is closed"))
            return done
        self._waiting.append(Waiting(replies, done, self._loop.time()))
        self._transport.write(payload)
        return done

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def is_stuck(self, patience: float) -> bool:
        """Whether somebody has given up on the answer that is due next, after all the time that a call has."""
        if not self._waiting or not self._waiting[0].done.done():
            return False
        return self._loop.time() - self._waiting[0].since > patience

    def close(self, problem: Exception | None = None) -> None:
        """Drop the connection; whoever still waits is told so."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        while self._waiting:
            done = self._waiting.popleft().done
            if not done.done():
                done.set_exception(problem or ConnectionResetError("the connection was closed"))

    # -- as a protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(exc or ConnectionResetError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            while data:
                if not self._waiting:
                    raise WireError("more came back than was asked for")
                data = self._taken_in(data)
        except WireError as error:
            self.close(error)

    def _taken_in(self, data: bytes) -> bytes:
        """Give data to whoever is next; what is left of it when that one has all."""
        replies, done, _ = self._waiting[0]
        if not replies.feed(data):
            return b""
        if replies.rest and len(self._waiting) == 1:
            raise WireError("more came back than was asked for")
        self._waiting.popleft()
        if not done.done():
            done.set_result(None)
        return replies.rest


class Links:
    """The connections of one event loop, opened when they are needed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._patience = patience
        self._links: dict[Server, Link] = {}
        self._stuck: list[Link] = []
        self._opening: dict[Server, asyncio.Lock] = {}

    async def exchange(self, payloads: Mapping[Server, bytes], replies: Mapping[Server, Replies]) -> None:
        """Send to all servers and wait for all. Stops waiting when it is cancelled, as a time budget does."""
        if len(payloads) == 1:
            for server, payload in payloads.items():
                await (await self._link(server)).ask(payload, replies[server])
            return
        await asyncio.gather(*(self._asked(server, payloads[server], replies[server]) for server in payloads))

    async def _asked(self, server: Server, payload: bytes, replies: Replies) -> None:
        await (await self._link(server)).ask(payload, replies)

    async def _link(self, server: Server) -> Link:
        link = self._usable(server)
        if link is not None:
            return link
        async with self._opening.setdefault(server, asyncio.Lock()):
            link = self._usable(server)
            if link is None:
                link = self._links[server] = await self._opened(server)
        return link

    async def _opened(self, server: Server) -> Link:
        problem = OSError(f"no address of {server}")
        for way in await asyncio.wrap_future(resolve(*server)):
            try:
                return (await self._loop.create_connection(lambda: Link(self._loop), *way.end[:2], family=way.family))[
                    1
                ]
            except OSError as error:
                problem = error
        raise problem

    def _usable(self, server: Server) -> Link | None:
        link = self._links.get(server)
        if link is None or not link.is_open:
            return None
        if link.is_stuck(self._patience):
            # Whoever still waits on it may do so for as long as a call may take; nobody else is sent after them.
            self._stuck.append(self._links.pop(server))
            self._loop.call_later(self._patience, self._give_up, link)
            return None
        return link

    def _give_up(self, link: Link) -> None:
        self._stuck = [other for other in self._stuck if other is not link]
        link.close()

    def close(self) -> None:
        """Close all; whoever still waits is told so."""
        for link in (*self._links.values(), *self._stuck):
            link.close()
        self._links, self._stuck = {}, []
