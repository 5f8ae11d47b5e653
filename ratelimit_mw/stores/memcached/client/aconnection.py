"""Connections on an event loop: one per server. All requests share it; replies come in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ...dns import resolve
from .protocol import LoginParser, ProtocolError, ReplyParser
from .servers import MemcachedAccess, MemcachedServer


class PendingReply(NamedTuple):
    """A reply on its way. When ``done`` was cancelled, the reply is read and dropped."""

    parser: ReplyParser
    done: asyncio.Future[None]
    since: float


class MemcachedConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[PendingReply] = deque()
        self._transport: asyncio.Transport | None = None

    def send(self, payload: bytes, parser: ReplyParser) -> asyncio.Future[None]:
        """Send now. The future is done when the parser has the whole reply."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._transport is None:
            done.set_exception(ConnectionResetError("the connection is closed"))
            return done
        self._pending.append(PendingReply(parser, done, self._loop.time()))
        self._transport.write(payload)
        return done

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def is_stuck(self, patience: float) -> bool:
        """Whether a caller has given up on the next reply after ``patience`` seconds."""
        if not self._pending or not self._pending[0].done.done():
            return False
        return self._loop.time() - self._pending[0].since > patience

    def close(self, problem: Exception | None = None) -> None:
        """Drop the connection and fail the pending replies."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        while self._pending:
            done = self._pending.popleft().done
            if not done.done():
                done.set_exception(problem or ConnectionResetError("the connection was closed"))

    # -- asyncio.Protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(exc or ConnectionResetError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            while data:
                if not self._pending:
                    raise ProtocolError("more data than requested")
                data = self._parse(data)
        except ProtocolError as error:
            self.close(error)

    def _parse(self, data: bytes) -> bytes:
        """Give data to the next pending reply, and return the data after that reply."""
        parser, done, _ = self._pending[0]
        if not parser.feed(data):
            return b""
        if parser.rest and len(self._pending) == 1:
            raise ProtocolError("more data than requested")
        self._pending.popleft()
        if not done.done():
            done.set_result(None)
        return parser.rest


class MemcachedConnections:
    """The connections of one event loop, opened on first use. ``patience``: seconds that a call may take."""

    def __init__(self, loop: asyncio.AbstractEventLoop, access: MemcachedAccess, patience: float) -> None:
        self._loop = loop
        self._access = access
        self._patience = patience
        self._connections: dict[MemcachedServer, MemcachedConnection] = {}
        self._opening: dict[MemcachedServer, asyncio.Lock] = {}

    async def exchange(
        self, payloads: Mapping[MemcachedServer, bytes], parsers: Mapping[MemcachedServer, ReplyParser]
    ) -> None:
        """Send to all servers and wait for all replies."""
        if len(payloads) == 1:
            for server, payload in payloads.items():
                await self._exchange(server, payload, parsers[server])
            return
        await asyncio.gather(*(self._exchange(server, payloads[server], parsers[server]) for server in payloads))

    async def _exchange(self, server: MemcachedServer, payload: bytes, parser: ReplyParser) -> None:
        connection = self._usable(server) or await self._connect(server)
        await connection.send(payload, parser)

    async def _connect(self, server: MemcachedServer) -> MemcachedConnection:
        async with self._opening.setdefault(server, asyncio.Lock()):
            connection = self._usable(server)
            if connection is None:
                connection = self._connections[server] = await self._open(server)
        return connection

    async def _open(self, server: MemcachedServer) -> MemcachedConnection:
        problem: OSError = OSError("the name has no address")
        tls: dict[str, Any] = (
            {} if self._access.tls is None else {"ssl": self._access.tls, "server_hostname": server.host}
        )
        for resolved in await asyncio.wrap_future(resolve(*server)):
            try:
                _, connection = await self._loop.create_connection(
                    lambda: MemcachedConnection(self._loop), *resolved.end[:2], family=resolved.family, **tls
                )
            except OSError as error:
                problem = error
                continue
            if self._access.login:
                try:
                    await connection.send(self._access.login, LoginParser(server))
                except BaseException:
                    connection.close()
                    raise
            return connection
        raise ConnectionError(f"cannot connect to {server}: {problem}") from problem

    def _usable(self, server: MemcachedServer) -> MemcachedConnection | None:
        connection = self._connections.get(server)
        if connection is None or not connection.is_open:
            return None
        if connection.is_stuck(self._patience):
            connection.close()
            return None
        return connection

    def close(self) -> None:
        """Close all connections and fail their pending replies."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
