"""Connections on an event loop: one per server. All requests share it; replies come in the order of the requests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import repeat
from typing import cast

from ...budget import LoopClock
from ...dns import resolve
from ...sockets import open_stream
from .protocol import KeyCommands, KeyReply, LoginParser, ProtocolError, ReplyParser, RoundTrip
from .servers import MemcachedAccess, MemcachedServer, named_errors


class MemcachedConnection(asyncio.Protocol):
    """One connection. ``patience``: seconds that a call may take."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: LoopClock, patience: float) -> None:
        self._loop = loop
        self._clock = clock
        self._patience = patience
        self._pending: deque[tuple[ReplyParser, asyncio.Future[None], float]] = deque()
        """Replies on their way, with the time of the request. The reply of a cancelled future is read and dropped."""
        self._transport: asyncio.Transport | None = None

    def send(self, payload: bytes, parser: ReplyParser) -> asyncio.Future[None]:
        """Send now. The future is done when the parser has the whole reply."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        done: asyncio.Future[None] = self._loop.create_future()
        self._pending.append((parser, done, self._clock.time()))
        self._transport.write(payload)
        return done

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and not stuck: a caller has given up on the next reply, which is overdue."""
        if self._transport is None or self._transport.is_closing():
            return False
        if not self._pending:
            return True
        _, done, since = self._pending[0]
        return not done.done() or self._clock.time() - since <= self._patience

    def close(self, problem: Exception | None = None) -> None:
        """Drop the connection and fail the pending replies."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        while self._pending:
            _, done, _ = self._pending.popleft()
            if not done.done():
                done.set_exception(problem or ConnectionResetError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(exc or ConnectionResetError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            while data:
                if not self._pending:
                    raise ProtocolError("more data than requested")
                parser, done, _ = self._pending[0]
                if not parser.feed(data):
                    return
                if parser.rest and len(self._pending) == 1:
                    raise ProtocolError("more data than requested")
                self._pending.popleft()
                if not done.done():
                    done.set_result(None)
                data = parser.rest
        except ProtocolError as error:
            self.close(error)


class MemcachedConnections:
    """The connections of the running event loop, opened on first use. ``patience``: seconds that a call may take."""

    def __init__(self, access: MemcachedAccess, clock: LoopClock, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._access = access
        self._patience = patience
        self._connections: dict[MemcachedServer, MemcachedConnection] = {}
        self._opening: dict[MemcachedServer, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def exchange(self, requests: Sequence[KeyCommands], due: float) -> list[KeyReply]:
        """Send to all servers, then read from all. The caller bounds the call by ``due``."""
        trip = RoundTrip(requests)
        exchanges = map(self._exchange, trip.payloads, trip.payloads.values(), trip.parsers.values(), repeat(due))
        if len(trip.payloads) == 1:
            await next(exchanges)
        else:
            await asyncio.gather(*exchanges)
        return trip.replies()

    async def _exchange(self, server: MemcachedServer, payload: bytes, parser: ReplyParser, due: float) -> None:
        connection = self._connections.get(server)
        if connection is None or not connection.is_usable:
            async with self._opening[server]:
                connection = self._connections.get(server)
                if connection is None or not connection.is_usable:
                    if connection is not None:
                        connection.close()
                    connection = self._connections[server] = await self._open(server, due)
        await connection.send(payload, parser)

    async def _open(self, server: MemcachedServer, due: float) -> MemcachedConnection:
        connection, access = MemcachedConnection(self._loop, self._clock, self._patience), self._access
        with named_errors(server):
            try:
                await open_stream(resolve(*server), access.tls, server.host, due, self._clock, connection)
                if access.login:
                    await connection.send(access.login, LoginParser(server))
            except BaseException:
                connection.close()
                raise
        return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
